//! `--check-config`: whether an origin can start with a configuration and the files that it names.

use std::path::Path;

use weir_runtime::failure;

use crate::config::Config;

/// Prints all errors, one on each line. Files that may be created later are printed, and are no errors. Returns whether an
/// origin can start.
pub async fn check_config(program: &str, file: &Path) -> bool {
    let config = match Config::read(file) {
        Ok(config) => config,
        Err(error) => {
            failure::report(program, &error.into());
            return false;
        }
    };
    if !config.check_files().report(program, config.validate().err()) {
        return false;
    }
    match crate::stored_documents(&config).await {
        Ok(stored) => {
            for (service, repository) in stored.without_repository {
                eprintln!(
                    "{program}: the repository {repository} of the operators' service {service} is not defined: the service \
                     keeps its published version"
                );
            }
            for (object, reason) in stored.refused {
                eprintln!("{program}: {object}: the operators' definition is invalid in this version: {reason}");
            }
        }
        Err(error) => eprintln!("{program}: the operators' definitions were not checked: {error:#}"),
    }
    true
}
