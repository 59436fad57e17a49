//! What `-h` and `--help` print.

use std::path::Path;
use std::process::Command;

use weir_loadtest::processes::binary;

/// The lines and columns of a usual terminal.
const SCREEN: (usize, usize) = (40, 140);

fn help(program: &Path, arguments: &[&str]) -> String {
    let run = Command::new(program).args(arguments).output().unwrap();
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
        assert!(is_step || ["Examples", "Start here", "How an edge"].iter().any(|word| long.contains(word)), "{long}");
    }
}
