//! `command-line.md`: what `--help` of each program prints.

use clap::{Command, CommandFactory};

use super::compare;

const INTRODUCTION: &str = "# Command line

What `--help` prints, for each program and each of its commands. A variable of the environment stands in for a flag that is not \
given. Exit codes: 0, 1 (it failed), 2 (the command line or the configuration is wrong).
";

/// The help of a command, and that of those below it.
fn help(command: &mut Command, level: usize) -> String {
    let name = command.get_bin_name().unwrap_or_else(|| command.get_name()).to_owned();
    let own = command.render_long_help().to_string();
    let own = own.lines().map(str::trim_end).collect::<Vec<_>>().join("\n");
    let mut page = format!("\n{} `{name}`\n\n```text\n{}\n```\n", "#".repeat(level), own.trim_end());
    for below in command.get_subcommands_mut().filter(|below| below.get_name() != "help") {
        page += &help(below, level + 1);
    }
    page
}

#[test]
fn the_reference_of_command_lines_is_that_of_the_code() {
    let commands = [
        crate::Arguments::command(),
        weir_origin::command_line::command(),
        weir_edge::command_line::command(),
        weir_agent::command_line::command(),
        weir_loadtest::command_line::command(),
    ];
    let mut page = INTRODUCTION.to_owned();
    for command in commands {
        // The values that variables have here are not for the page.
        let mut command = command.term_width(100).mut_args(|argument| argument.hide_env_values(true));
        command.build();
        page += &help(&mut command, 2);
    }
    compare("command-line.md", &page);
}
