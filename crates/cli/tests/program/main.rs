//! The program as its users run it, against real servers. One test program, so that it is linked
//! once, and initdb runs once for each version.

mod advice;
mod around;
mod binary;
mod commit;
mod common;
mod connections;
mod contract;
mod create;
mod deferred;
mod differences;
mod disks;
mod empties;
mod encodings;
mod faults;
mod help;
mod hostile;
mod inputs;
mod joints;
mod lanes;
mod load;
mod memory;
mod methods;
mod moments;
mod output;
mod plans;
mod pooler;
mod production;
mod quotes;
mod real;
mod rejects;
mod rights;
mod sample;
mod scheduler;
mod server;
mod statistics;
