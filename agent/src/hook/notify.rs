//! Hooks without a program: a touched file, a signal.

use std::fs::File;
use std::io::{self, Read};
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;
use std::time::SystemTime;

use rustix::fs::OFlags;
use rustix::process::{Pid, Signal, kill_process};

use crate::config::{SignalConfig, SignalName};

/// The most bytes of a file with a process number that are read.
const MAX_PID_BYTES: u64 = 64;

/// A pipe without another end does not block.
const NONBLOCK: i32 = OFlags::NONBLOCK.bits() as i32;

/// Creates the file, or gives it the present time.
pub(super) fn touch(path: &Path) -> io::Result<()> {
    File::options().create(true).append(true).custom_flags(NONBLOCK).open(path)?.set_modified(SystemTime::now())
}

/// Sends a signal to the process whose number is in a file.
pub(super) fn signal(config: &SignalConfig) -> io::Result<()> {
    let mut text = String::new();
    let file = File::options().read(true).custom_flags(NONBLOCK).open(&config.pid_file)?;
    file.take(MAX_PID_BYTES).read_to_string(&mut text)?;
    let pid = text.trim().parse().ok().filter(|pid| *pid > 0).and_then(Pid::from_raw);
    let pid = pid.ok_or_else(|| io::Error::other("the file contains no process number"))?;
    let signal = match config.signal {
        SignalName::Hup => Signal::HUP,
        SignalName::Int => Signal::INT,
        SignalName::Quit => Signal::QUIT,
        SignalName::Term => Signal::TERM,
        SignalName::Usr1 => Signal::USR1,
        SignalName::Usr2 => Signal::USR2,
        SignalName::Winch => Signal::WINCH,
    };
    Ok(kill_process(pid, signal)?)
}
