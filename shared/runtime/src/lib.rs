//! What every role's process shares: configuration, TLS, serving HTTP, the admin listener, telemetry, shutdown.
//!
//! Code belongs here only if at least two roles must do it in the same way.

pub mod access_files;
pub mod admin;
pub mod arenas;
pub mod bounds;
#[cfg(feature = "certificates")]
pub mod certificates;
pub mod config;
pub mod config_watch;
pub mod cross_site;
mod delegate;
pub mod directory_lock;
pub mod doctor;
pub mod durable_file;
pub mod failure;
pub mod file_check;
pub mod file_lock;
pub mod file_watch;
pub mod host_name;
pub mod http_client;
pub mod identity;
pub mod key_pair;
pub mod last_reload;
pub mod memory_limit;
pub mod metric_families;
pub mod open_files;
pub mod operator_token;
pub mod output;
pub mod page;
pub mod process_metrics;
pub mod secret_file;
pub mod serve;
pub mod service_manager;
pub mod shutdown;
pub mod status_command;
pub mod status_page;
pub mod telemetry;
pub mod tls;
pub mod udp;
mod wake_filter;
pub mod writable_directory;
