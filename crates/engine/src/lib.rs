//! The I/O and the threads of the loader.
