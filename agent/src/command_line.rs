//! The command line of `weir-agent`: a file, or flags, or a file and flags that override it.

use std::net::SocketAddr;
use std::path::PathBuf;
use std::time::Duration;

use clap::builder::{BoolishValueParser, Resettable};
use clap::error::ErrorKind;
use clap::parser::ValueSource;
use clap::{ArgMatches, CommandFactory, FromArgMatches, Parser, Subcommand};
use weir_protocol::name::{NodeName, ServiceName};
use weir_runtime::config::{ConfigError, duration, parse_address};

use crate::config::{Config, EdgeUrl, HttpMode, ServiceConfig, ServiceList};
use crate::pin_command::{RollbackArgs, UnpinArgs};

const EXAMPLES: &str = "\
Examples:
  weir-agent --config agent.toml
      Follows the services of the file. SIGHUP reloads it.
  weir-agent --edge https://127.0.0.1:7443 --ca ca.pem --service shop-prod --root ./agent-data --once
      Unpacks the newest release and exits: for init containers and pipelines.
  weir-agent --edge https://edge-1.example --edge https://edge-2.example --ca ca.pem --service shop-prod \\
      --root /var/lib/weir --exec 'kubectl apply -k .'
      Runs a command in each new release, and uses one of the edges while the other does not respond.
  weir-agent --config agent.toml --check-config
      Prints every error of the file, and of the files that it names.
  weir-agent doctor --config agent.toml
      Checks names, ports, certificates, the identity, the clock and the disk, and says what to do.
  weir-agent rollback --config agent.toml shop-prod
      Goes back to the previous release, until `weir-agent unpin --config agent.toml shop-prod`.

The command gets WEIR_SERVICE, WEIR_RELEASE, WEIR_DIGEST, WEIR_REVISION, WEIR_COMMIT, WEIR_VERSION, the last four of the
previous release too with WEIR_PREVIOUS_, and WEIR_CHANGES: a file with the changed paths.
Logs: WEIR_LOG=debug or WEIR_LOG=info,weir=debug; WEIR_LOG_FORMAT=text or json.";

/// Follow services of a Weir edge and keep verified releases of them on disk
///
/// ROOT/SERVICE/current is a symlink to the current release. It is switched atomically, and only to a verified release. A flag
/// overrides its environment variable, and both override the key in the file. An empty variable counts as unset.
#[derive(Debug, Clone, Parser)]
#[command(name = "weir-agent", version, after_help = "See `weir-agent --help` for examples.", after_long_help = EXAMPLES)]
pub struct Args {
    /// The configuration.
    #[command(flatten)]
    pub settings: Settings,
    /// Check the configuration and the files that it names, and exit
    ///
    /// Exit code 0: an agent can start, unless another program uses its address or its root. 2: every error is printed.
    #[arg(long)]
    pub check_config: bool,
    /// Exit when every service has its newest release: 0, or 1 with the reason
    ///
    /// A release counts once it is verified and its command has succeeded.
    #[arg(long, env = "WEIR_ONCE", value_parser = BoolishValueParser::new())]
    pub once: bool,
    /// With --once, how long temporary failures are retried
    #[arg(long, value_name = "TIME", env = "WEIR_ONCE_TIMEOUT", value_parser = duration::parse, default_value = "60s")]
    pub once_timeout: Duration,
    /// What to do instead of running an agent.
    #[command(subcommand)]
    pub command: Option<Command>,
}

/// What to do instead of running an agent.
#[derive(Debug, Clone, Subcommand)]
pub enum Command {
    /// Check names, ports, certificates, the identity, the clock and the disk
    Doctor(DoctorArgs),
    /// Go back to an earlier release, and stay there
    Rollback(RollbackArgs),
    /// Let a service follow its edges again
    Unpin(UnpinArgs),
    /// Show what the running agent says of itself
    ///
    /// It asks the agent through a socket in `root`, so it needs no admin listener, no token and no other program:
    /// `kubectl exec POD -- weir-agent status`. Exit code 0: it is ready. 1: it is not. 2: no agent answers.
    Status(StatusArgs),
}

/// The arguments of `status`.
#[derive(Debug, Clone, clap::Args)]
pub struct StatusArgs {
    /// The configuration of the agent.
    #[command(flatten)]
    pub settings: Settings,
    /// Print the document of /status as JSON
    #[arg(long)]
    pub json: bool,
}

/// The arguments of `doctor`.
#[derive(Debug, Clone, clap::Args)]
pub struct DoctorArgs {
    /// The configuration of the agent.
    #[command(flatten)]
    pub settings: Settings,
    /// Print one JSON document
    #[arg(long)]
    pub json: bool,
}

/// The configuration: a file, or flags, or both.
#[derive(Debug, Clone, clap::Args)]
pub struct Settings {
    /// The configuration file
    #[arg(long, value_name = "FILE", env = "WEIR_CONFIG", global = true)]
    pub config: Option<PathBuf>,
    /// The URL of an edge; takes several
    #[arg(long = "edge", value_name = "URL", env = "WEIR_EDGE", value_delimiter = ',')]
    pub edges: Vec<EdgeUrl>,
    /// A service to follow; takes several
    #[arg(long = "service", value_name = "NAME", env = "WEIR_SERVICE", value_delimiter = ',')]
    pub services: Vec<ServiceName>,
    /// Which services to follow
    ///
    /// listed: those of the file, and of --service. assigned: those that operators assign to this agent.
    #[arg(long = "services", value_enum, env = "WEIR_SERVICES", hide_possible_values = true, value_name = "LIST")]
    pub list: Option<ServiceList>,
    /// The folder that holds one folder per service
    #[arg(long, value_name = "DIR", env = "WEIR_ROOT")]
    pub root: Option<PathBuf>,
    /// The PEM file of the authority that signed the edges' certificates
    #[arg(long, value_name = "FILE", env = "WEIR_CA")]
    pub ca: Option<PathBuf>,
    /// The file with this agent's token, for edges that require one
    #[arg(long, value_name = "FILE", env = "WEIR_TOKEN_FILE")]
    pub token_file: Option<PathBuf>,
    /// Time between polls, such as 30s
    #[arg(long, value_name = "TIME", env = "WEIR_POLL_INTERVAL", value_parser = duration::parse)]
    pub poll_interval: Option<Duration>,
    /// Time between forced refreshes, such as 2h
    #[arg(long, value_name = "TIME", env = "WEIR_REFRESH_INTERVAL", value_parser = duration::parse)]
    pub refresh_interval: Option<Duration>,
    /// A command that `sh -c` runs in each new release, for every service
    #[arg(long, value_name = "CMD", env = "WEIR_EXEC")]
    pub exec: Option<String>,
    /// The version of HTTP
    ///
    /// auto is HTTP/3, or HTTP/2 if UDP is blocked.
    #[arg(long, value_enum, env = "WEIR_HTTP")]
    pub http: Option<HttpMode>,
    /// This agent's name [default: the host name]
    #[arg(long, value_name = "NAME", env = "WEIR_NAME")]
    pub name: Option<NodeName>,
    /// Where /livez, /readyz, /metrics and /status are served, such as 127.0.0.1:7492
    #[arg(long, value_name = "ADDRESS", env = "WEIR_ADMIN_LISTEN", value_parser = parse_address)]
    pub admin_listen: Option<SocketAddr>,
    /// Label the metrics with the service
    #[arg(long, env = "WEIR_METRICS_BY_SERVICE", value_parser = BoolishValueParser::new())]
    pub metrics_by_service: bool,
}

impl Args {
    /// Reads the command line and the environment of this process; exits when they are invalid. An empty variable counts as
    /// unset.
    #[must_use]
    pub fn of_process() -> Self {
        let mut command = without_empty_variables(Self::command());
        let matches = command.get_matches_mut();
        misplaced_flag(&mut command, &matches)
            .map_or_else(|| Self::from_arg_matches(&matches), Err)
            .unwrap_or_else(|error| error.exit())
    }

    /// The configuration of the file and the flags, validated.
    ///
    /// # Errors
    /// As [`Settings::into_config`].
    pub fn into_config(self) -> Result<Config, ConfigError> {
        self.settings.into_config()
    }
}

/// The error of a flag before a command, where it would be ignored. `--config` is not.
fn misplaced_flag(command: &mut clap::Command, matches: &ArgMatches) -> Option<clap::Error> {
    let name = matches.subcommand_name()?;
    let flag = command.get_arguments().find(|argument| {
        !argument.is_global_set() && matches.value_source(argument.get_id().as_str()) == Some(ValueSource::CommandLine)
    })?;
    let flag = flag.get_long().unwrap_or_default().to_owned();
    let problem = format!(
        "`--{flag}` cannot be used before `{name}`: `weir-agent help {name}` lists the flags that may follow it"
    );
    Some(command.error(ErrorKind::ArgumentConflict, problem))
}

fn without_empty_variables(command: clap::Command) -> clap::Command {
    let command = command.mut_args(|arg| match arg.get_env().and_then(std::env::var_os) {
        Some(value) if value.is_empty() => arg.env(Resettable::Reset),
        _ => arg,
    });
    command.mut_subcommands(without_empty_variables)
}

impl Settings {
    /// The configuration of the file and the flags, validated.
    ///
    /// # Errors
    /// The file cannot be used, or the configuration is invalid.
    pub fn into_config(self) -> Result<Config, ConfigError> {
        let config = self.merged()?;
        config.validate()?;
        Ok(config)
    }

    /// The same, not validated yet.
    ///
    /// # Errors
    /// The file cannot be used.
    pub fn merged(self) -> Result<Config, ConfigError> {
        fn set<T>(key: &mut T, flag: Option<T>) {
            if let Some(value) = flag {
                *key = value;
            }
        }
        let mut config = self.config.as_deref().map_or_else(|| Ok(Config::default()), Config::read)?;
        if !self.edges.is_empty() {
            config.edges = self.edges;
        }
        if !self.services.is_empty() {
            let known = std::mem::take(&mut config.services);
            config.services = self
                .services
                .into_iter()
                .map(|name| {
                    let known = known.iter().find(|service| service.name.as_str() == name.as_str()).cloned();
                    known.unwrap_or_else(|| ServiceConfig::new(&name))
                })
                .collect();
        }
        set(&mut config.list, self.list);
        if let Some(exec) = self.exec {
            if config.list == ServiceList::Assigned && config.services.is_empty() {
                config.services.push(ServiceConfig::of("*".parse().expect("a pattern")));
            }
            for service in &mut config.services {
                service.exec = Some(exec.as_str().into());
            }
        }
        set(&mut config.root, self.root);
        set(&mut config.ca, self.ca);
        set(&mut config.poll_interval, self.poll_interval);
        set(&mut config.refresh_interval, self.refresh_interval);
        set(&mut config.http, self.http);
        set(&mut config.name, self.name);
        if self.token_file.is_some() {
            config.token_file = self.token_file;
        }
        if self.admin_listen.is_some() {
            config.admin_listen = self.admin_listen;
        }
        config.metrics_by_service |= self.metrics_by_service;
        Ok(config)
    }
}
