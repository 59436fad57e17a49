//! Runs other programs with a clean environment, shielded from signals that are meant for the origin. A program ends
//! with all its children, even if the origin is killed. [`run`] waits with a time limit; [`Running`] is for a
//! dialogue.

use std::fs::File;
use std::io::{self, Read, Seek, Write};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStderr, Command, ExitStatus, Stdio};
use std::sync::LazyLock;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process_group};

/// The most bytes to read of a program's output.
const MAX_OUTPUT_BYTES: u64 = 64 << 10;

/// The interval at which the end of a program is polled.
const POLL_INTERVAL: Duration = Duration::from_millis(20);

/// The output of a program that ended by itself.
#[derive(Debug)]
pub struct ProgramOutput {
    /// Whether its exit status was 0.
    pub success: bool,
    /// Its standard output.
    pub output: String,
    /// Its standard error.
    pub stderr: String,
}

impl ProgramOutput {
    /// The last line of its standard error, or a note that there is none.
    pub fn error_line(&self) -> String {
        let line = self.stderr.lines().map(str::trim).rfind(|line| !line.is_empty());
        line.unwrap_or("it wrote no error message").chars().take(300).collect()
    }
}

/// The program did not end by itself.
#[derive(Debug, thiserror::Error)]
pub enum ProgramError {
    /// It is not installed.
    #[error("the program `{0}` is not installed")]
    Missing(String),
    /// It cannot be started.
    #[error("`{program}` cannot be run: {source}")]
    Start {
        /// Its name.
        program: String,
        /// Why.
        source: io::Error,
    },
    /// It took too long.
    #[error("`{program}` took longer than {} s and was ended", longest.as_secs())]
    TooLong {
        /// Its name.
        program: String,
        /// The limit.
        longest: Duration,
    },
    /// `stop` was set.
    #[error("`{0}` was interrupted")]
    Interrupted(String),
}

/// Resource limits of a program.
#[derive(Debug, Clone, Copy)]
pub struct Bounds {
    /// Bytes of its address space.
    pub memory: u64,
    /// Bytes of each file that it writes.
    pub file: u64,
}

/// Runs a program and kills its process group once the thread that started it is gone. A shell gives background jobs
/// no input, so the input is passed on explicitly.
const TETHERED: &str = r#"trap 'kill -KILL 0' TERM; exec 3<&0; "$0" "$@" <&3 3<&- & exec 3<&-; wait $!"#;

/// Sets the parent-death signal, then becomes the shell.
const LAUNCHER: &str = "setpriv";

/// Where it is. A program that is started by its path needs no copy of the page tables of this process, which may be large.
static LAUNCHER_PATH: LazyLock<PathBuf> = LazyLock::new(|| {
    let path = std::env::var_os("PATH").unwrap_or_default();
    let found = std::env::split_paths(&path).map(|folder| folder.join(LAUNCHER)).find(|file| file.is_file());
    found.unwrap_or_else(|| LAUNCHER.into())
});

/// The position of the program's name in a command of [`pinned`].
const NAME_AT: usize = 5;

/// The exit status of a shell for an unknown program.
const NOT_FOUND: i32 = 127;

/// A program whose environment has only `PATH` and an English locale. It ends with the thread that starts it.
pub fn pinned(program: &str) -> Command {
    tethered(program, TETHERED)
}

/// The same with resource limits.
pub fn pinned_within(program: &str, bounds: Bounds) -> Command {
    let (memory, file) = (bounds.memory.div_ceil(1024), bounds.file.div_ceil(512));
    tethered(program, &format!("ulimit -v {memory} || exit; ulimit -f {file} || exit; {TETHERED}"))
}

fn tethered(program: &str, script: &str) -> Command {
    let mut command = Command::new(&*LAUNCHER_PATH);
    command.env_clear().envs(std::env::var_os("PATH").map(|path| ("PATH", path))).env("LC_ALL", "C");
    command.args(["--pdeathsig", "TERM", "sh", "-c", script, program]);
    command
}

/// Runs a program on some input. The program and its children are killed after `longest`, or when `stop` is set.
/// Input and output are unnamed files in `scratch`, so that no pipe can block.
///
/// # Errors
/// The program is not installed, cannot be run, or was killed.
pub fn run(
    command: &mut Command,
    input: &[u8],
    scratch: &Path,
    longest: Duration,
    stop: &AtomicBool,
) -> Result<ProgramOutput, ProgramError> {
    let (result, output) = run_to_file(command, input, scratch, longest, stop)?;
    Ok(ProgramOutput { output: read_back(output), ..result })
}

/// The same, with output of any length: it is in the file, from its beginning.
///
/// # Errors
/// The same.
pub fn run_to_file(
    command: &mut Command,
    input: &[u8],
    scratch: &Path,
    longest: Duration,
    stop: &AtomicBool,
) -> Result<(ProgramOutput, File), ProgramError> {
    let program = command.get_args().nth(NAME_AT).unwrap_or_default().to_string_lossy().into_owned();
    if stop.load(Ordering::Relaxed) {
        return Err(ProgramError::Interrupted(program));
    }
    let start = |source: io::Error| match source.kind() {
        io::ErrorKind::NotFound => ProgramError::Missing(LAUNCHER.to_owned()),
        _ => ProgramError::Start { program: program.clone(), source },
    };
    let file = || tempfile::tempfile_in(scratch);
    let prepared = || -> io::Result<(File, File, File, [File; 3])> {
        let (mut input_file, output, errors) = (file()?, file()?, file()?);
        input_file.write_all(input)?;
        input_file.rewind()?;
        let child_files = [input_file.try_clone()?, output.try_clone()?, errors.try_clone()?];
        Ok((input_file, output, errors, child_files))
    };
    let prepared = prepared().map_err(|source| ProgramError::Start { program: program.clone(), source });
    let (_input_file, mut output, errors, [stdin, stdout, stderr]) = prepared?;
    command.stdin(stdin).stdout(stdout).stderr(stderr);
    let mut running = Running::start(command).map_err(start)?;
    // Closes the command's copies of the files.
    command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
    let status = running.wait(longest, stop).map_err(start)?;
    match status {
        End::Itself(status) if status.code() == Some(NOT_FOUND) => Err(ProgramError::Missing(program)),
        End::Itself(status) => {
            output.rewind().map_err(start)?;
            let result = ProgramOutput { success: status.success(), output: String::new(), stderr: read_back(errors) };
            Ok((result, output))
        }
        End::TooLong => Err(ProgramError::TooLong { program, longest }),
        End::Interrupted => Err(ProgramError::Interrupted(program)),
    }
}

fn read_back(mut file: File) -> String {
    let mut bytes = Vec::new();
    // Unreadable output counts as empty.
    let _ = file.rewind().and_then(|()| file.take(MAX_OUTPUT_BYTES).read_to_end(&mut bytes));
    String::from_utf8_lossy(&bytes).into_owned()
}

/// How a program ended.
pub enum End {
    /// By itself, with this status.
    Itself(ExitStatus),
    /// It took too long.
    TooLong,
    /// `stop` was set.
    Interrupted,
}

/// A running program. Dropping it kills the program and its children, unless its end was awaited.
pub struct Running {
    child: Child,
    ended: bool,
}

impl Running {
    /// Starts it in a process group of its own.
    pub fn start(command: &mut Command) -> io::Result<Self> {
        Ok(Self { child: command.process_group(0).spawn()?, ended: false })
    }

    /// Its standard error, if that is a pipe.
    pub fn stderr(&mut self) -> Option<ChildStderr> {
        self.child.stderr.take()
    }

    /// Waits for its end. Kills it after the longest time, or when `stop` is set.
    pub fn wait(&mut self, longest: Duration, stop: &AtomicBool) -> io::Result<End> {
        let begun = Instant::now();
        let mut pause = Duration::from_millis(1);
        loop {
            if let Some(status) = self.child.try_wait()? {
                self.ended = true;
                return Ok(End::Itself(status));
            }
            if stop.load(Ordering::Relaxed) {
                return Ok(End::Interrupted);
            }
            if begun.elapsed() >= longest {
                return Ok(End::TooLong);
            }
            std::thread::sleep(pause);
            pause = (2 * pause).min(POLL_INTERVAL);
        }
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        if !self.ended {
            // The child was not reaped, so its id cannot belong to another process.
            let _ = kill_process_group(Pid::from_child(&self.child), Signal::KILL);
            let _ = self.child.wait();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LONG: Duration = Duration::from_secs(60);

    fn shell(script: &str) -> Command {
        let mut command = pinned("sh");
        command.args(["-c", script]);
        command
    }

    fn run_in(
        command: &mut Command,
        input: &[u8],
        longest: Duration,
        stop: bool,
    ) -> Result<ProgramOutput, ProgramError> {
        let dir = tempfile::tempdir().unwrap();
        run(command, input, dir.path(), longest, &AtomicBool::new(stop))
    }

    #[test]
    fn it_gets_its_input_and_nothing_of_the_environment() {
        let ended = run_in(&mut shell("cat; echo $HOME$USER$LC_ALL; echo why >&2; exit 3"), b"given ", LONG, false);
        let ended = ended.unwrap();
        assert_eq!((ended.success, ended.output.as_str()), (false, "given C\n"));
        assert_eq!(ended.error_line(), "why");
    }

    #[test]
    fn endless_output_ends_the_program() {
        let ended = run_in(&mut shell("head -c 1000000 /dev/zero; head -c 1000000 /dev/zero >&2"), b"", LONG, false);
        let ended = ended.unwrap();
        assert_eq!((ended.success, ended.output.len()), (true, 64 << 10));
    }

    /// Ending the thread has the same effect as killing the whole process.
    #[test]
    fn all_that_it_has_started_ends_with_the_thread_that_started_it() {
        let (mut ours, theirs) = std::os::unix::net::UnixStream::pair().unwrap();
        std::thread::spawn(move || {
            let mut command = shell("sleep 1000 & echo x; sleep 1000");
            command.stdout(std::os::fd::OwnedFd::from(theirs));
            std::mem::forget(Running::start(&mut command).unwrap());
            drop(command);
            ours.read_exact(&mut [0; 2]).unwrap();
            ours
        })
        .join()
        .map(|mut ours| assert_eq!(ours.read(&mut [0]).unwrap(), 0))
        .unwrap();
    }

    #[test]
    fn the_memory_of_a_program_is_limited() {
        let within = |bounds: Bounds, script: &str| {
            let mut command = pinned_within("sh", bounds);
            run_in(command.args(["-c", script]), b"", LONG, false).unwrap()
        };
        let script = "ulimit -v; head -c 3000000 /dev/zero";
        let ended = within(Bounds { memory: 1 << 30, file: 1 << 20 }, script);
        assert!(!ended.success && ended.output.starts_with("1048576\n"), "{ended:?}");
        assert!(within(Bounds { memory: 1 << 30, file: 4 << 20 }, script).success);
    }

    #[test]
    fn a_program_past_its_deadline_is_killed_with_its_children() {
        let mut command = shell("sleep 1000 & sleep 1000");
        assert!(matches!(run_in(&mut command, b"", Duration::ZERO, false), Err(ProgramError::TooLong { .. })));
        assert!(matches!(run_in(&mut command, b"", LONG, true), Err(ProgramError::Interrupted(_))));
        let missing = run_in(&mut pinned("no-such-program"), b"", LONG, false);
        assert!(matches!(missing, Err(ProgramError::Missing(name)) if name == "no-such-program"));
    }
}
