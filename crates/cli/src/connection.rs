//! The arguments of the connection. They have the same names as in psql and pg_dump.

use crate::failure::Failure;
use clap::{ArgAction, Args};
use pgsluice_engine::target::joined;

/// The database.
#[derive(Args, Debug)]
#[command(next_help_heading = "Connection")]
pub struct ConnectionArguments {
    /// The database: its name, postgresql://user@host:port/database, or libpq's keywords.
    /// The PG* variables, the service file and ~/.pgpass are used as by psql
    #[arg(
        long,
        short = 'd',
        visible_alias = "dbname",
        value_name = "URL",
        default_value = "",
        hide_default_value = true
    )]
    to: String,
    /// The server's host name, or the folder of its Unix socket
    #[arg(long, short = 'h', value_name = "HOST")]
    host: Option<String>,
    /// The server's port
    #[arg(long, short = 'p', value_name = "PORT")]
    port: Option<String>,
    /// The role to connect as
    #[arg(long, short = 'U', value_name = "USER")]
    username: Option<String>,
    /// Print help (-h is the host, as in psql)
    #[arg(long, short = '?', action = ArgAction::Help, help_heading = "Options")]
    help: Option<bool>,
}

impl ConnectionArguments {
    /// The target as one connection string for libpq.
    ///
    /// # Errors
    ///
    /// `--to` cannot be read, or repeats what another option gives.
    pub fn target(&self) -> Result<String, Failure> {
        let given = [
            ("host", "--host", &self.host),
            ("port", "--port", &self.port),
            ("user", "--username", &self.username),
        ];
        let given: Vec<(&str, &str, &str)> = given
            .iter()
            .filter_map(|(keyword, option, value)| Some((*keyword, *option, value.as_deref()?)))
            .collect();
        Ok(joined(&self.to, &given)?)
    }
}
