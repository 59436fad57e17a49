//! What `-h` and `--help` print.

use std::fs;
use std::path::Path;
use std::process::Command;

use weir_loadtest::processes::binary;

/// The lines and columns of a usual terminal.
const SCREEN: (usize, usize) = (40, 140);

fn help(program: &Path, arguments: &[&str]) -> String {
    let run = Command::new(program).args(arguments).env_clear().output().unwrap();
    assert!(run.status.success(), "{program:?} {arguments:?}");
    String::from_utf8(run.stdout).unwrap()
}

#[test]
fn short_help_fits_a_screen_and_long_help_has_examples() {
    let weir = Path::new(env!("CARGO_BIN_EXE_weir"));
    let roles = ["weir-origin", "weir-edge", "weir-agent"].map(|role| binary(role).unwrap());
    let of_weir = [&[][..], &["up"], &["certificates"], &["token"], &["token", "key"], &["token", "issue"]];
    let of_weir = of_weir.into_iter().map(|command| (weir, command));
    for (program, command) in of_weir.chain(roles.iter().map(|role| (&**role, &[][..]))) {
        let short = help(program, &[command, &["-h"]].concat());
        let size = (short.lines().count(), short.lines().map(|line| line.chars().count()).max().unwrap());
        assert!(size.0 <= SCREEN.0 && size.1 <= SCREEN.1, "{program:?} {command:?} {size:?}\n{short}");
        let long = help(program, &[command, &["--help"]].concat());
        let is_step = matches!(command, ["token", _]);
        assert!(is_step || ["Examples", "Start here"].iter().any(|word| long.contains(word)), "{long}");
    }
}

const INTRODUCTION: &str = "# Command line

<!-- Generated from the programs by `WEIR_REFERENCE=write cargo test -p weir --test standalone help`. -->

What `--help` prints, for each program and each of its commands. An environment variable stands in for a flag that is not \
given. Exit codes: 0; 1 it failed; 2 the command line or the configuration is invalid; `weir-origin verify` has its own.
";

/// The help of a command, and that of the commands below it.
fn reference(program: &Path, command: &[&str], level: usize) -> String {
    let text = help(program, &[command, &["--help"]].concat());
    let text = text.lines().map(str::trim_end).collect::<Vec<_>>().join("\n");
    let name = [&[program.file_name().unwrap().to_str().unwrap()], command].concat().join(" ");
    let mut page = format!("\n{} `{name}`\n\n```text\n{}\n```\n", "#".repeat(level), text.trim_end());
    let below = text.lines().skip_while(|line| *line != "Commands:").skip(1).take_while(|line| !line.is_empty());
    let names = below.filter(|line| line.starts_with("  ") && !line.starts_with("   "));
    for name in names.filter_map(|line| line.split_whitespace().next()).filter(|name| *name != "help") {
        page += &reference(program, &[command, &[name]].concat(), level + 1);
    }
    page
}

#[test]
fn the_command_line_reference_matches_the_programs() {
    let mut page = INTRODUCTION.to_owned() + &reference(Path::new(env!("CARGO_BIN_EXE_weir")), &[], 2);
    for role in ["weir-origin", "weir-edge", "weir-agent"] {
        page += &reference(&binary(role).unwrap(), &[], 2);
    }
    let file = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/reference/command-line.md");
    if std::env::var_os("WEIR_REFERENCE").is_some_and(|value| value == "write") {
        fs::write(&file, &page).unwrap();
    }
    let written = fs::read_to_string(&file).unwrap_or_default();
    let differs = written.lines().zip(page.lines()).find(|(written, now)| written != now);
    assert!(differs.is_none() && written == page, "write the page again with WEIR_REFERENCE=write: {differs:?}");
}
