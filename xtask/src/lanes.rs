//! Runs test binaries in two lanes, side by side.
//!
//! `cargo test` runs one binary after the other. Many binaries have or end with a single long test,
//! during which the other cores are idle. With two lanes, each on half of the cores, all cores are
//! busy until the last binary.
//!
//! On Linux each lane is bound to its half. The CPU device starts a worker for each core that it
//! may use, and workers wait for each other hundreds of times a step. With two lanes of two workers
//! each on two cores, some binaries took three times as long. So a lane of one core has one worker,
//! unless a test starts more. `full` does not bind its lanes.
//!
//! `cargo nextest` starts a process for each test. Tests of one binary here share what is slow to
//! make: models, compiled shaders that are loaded, and the emulated GPU. A fresh machine would also
//! have to install it first.

use std::collections::VecDeque;
use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::{Mutex, PoisonError};
use std::thread;
use std::time::Instant;

/// Folders of the packages with the longest tests, longest first. They start first, so that no lane
/// runs one of them alone at the end.
const SLOWEST: [&str; 7] =
    ["cli", "device-metal", "model", "engine", "device-cpu", "metal-emulator", "device"];

/// A program to run, usually a test binary. Its output is collected.
#[derive(Debug)]
pub struct Job {
    /// The package's folder and the target, such as `device-cpu main`.
    pub name: String,
    /// The program.
    pub program: PathBuf,
    /// Its arguments.
    pub arguments: Vec<String>,
    /// The job's working directory: the package's folder, as under `cargo test`.
    pub folder: PathBuf,
    /// True if `CARGO_MANIFEST_DIR` is set to `folder`, as cargo sets it for a test binary.
    pub is_of_package: bool,
}

/// Cores that the programs of a lane may use.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Cores {
    /// The lane's share of the cores, if the system can bind a process to cores.
    Halved,
    /// All cores.
    All,
}

/// Test binaries in the output of `cargo test --no-run --message-format=json`, slowest packages
/// first.
pub fn jobs(messages: &str, arguments: &[String]) -> Vec<Job> {
    let mut jobs: Vec<Job> = messages.lines().filter_map(|line| job(line, arguments)).collect();
    let rank =
        |job: &Job| SLOWEST.iter().position(|slow| job.folder.ends_with(slow)).unwrap_or(SLOWEST.len());
    jobs.sort_by_key(rank);
    jobs
}

/// The test binary that a message of cargo describes, if any.
fn job(message: &str, arguments: &[String]) -> Option<Job> {
    // Messages also describe other binaries, which tests run.
    let profile = message.split_once("\"profile\":{")?.1.split_once('}')?.0;
    if !profile.contains("\"test\":true") {
        return None;
    }
    let program = PathBuf::from(field(message, "executable")?);
    let folder = Path::new(&field(message, "manifest_path")?).parent()?.to_owned();
    let target = field(message.split_once("\"target\":{")?.1, "name")?;
    let name = format!("{} {target}", folder.file_name()?.to_string_lossy());
    Some(Job { name, program, arguments: arguments.to_vec(), folder, is_of_package: true })
}

/// The first string value of `key` in a JSON text.
fn field(json: &str, key: &str) -> Option<String> {
    let rest = json.split_once(&format!("\"{key}\":\""))?.1;
    let mut value = String::new();
    let mut characters = rest.chars();
    loop {
        match characters.next()? {
            '"' => return Some(value),
            // In paths and names, only backslashes and quotes are escaped.
            '\\' => value.push(characters.next()?),
            other => value.push(other),
        }
    }
}

/// Runs all jobs and prints the output of each when it ends. `logs` is a folder for the outputs.
///
/// # Errors
///
/// A list of the jobs that failed.
pub fn run(jobs: Vec<Job>, logs: &Path, environment: &[(&str, &str)], cores: Cores) -> Result<(), String> {
    fs::create_dir_all(logs).map_err(|error| format!("{}: {error}", logs.display()))?;
    let n_cores = thread::available_parallelism().map_or(1, |n| n.get());
    let n_lanes = n_cores.min(2);
    let threads = (n_cores / n_lanes).to_string();
    let shares = if cores == Cores::Halved { shares(n_lanes) } else { vec![None; n_lanes] };
    let queue = Mutex::new(VecDeque::from(jobs));
    let failures = Mutex::new(Vec::new());
    let lane = |share: Option<&str>| {
        loop {
            let next = queue.lock().unwrap_or_else(PoisonError::into_inner).pop_front();
            let Some(job) = next else { break };
            if let Err(reason) = run_job(&job, logs, &threads, environment, share) {
                let mut failures = failures.lock().unwrap_or_else(PoisonError::into_inner);
                failures.push(format!("{}: {reason}", job.name));
            }
        }
    };
    thread::scope(|scope| {
        shares.iter().for_each(|share| drop(scope.spawn(|| lane(share.as_deref()))));
    });
    let failures = failures.into_inner().unwrap_or_else(PoisonError::into_inner);
    if failures.is_empty() { Ok(()) } else { Err(format!("tests failed\n  {}", failures.join("\n  "))) }
}

/// The cores of each lane, in the format of `taskset -c`. `None` without `taskset`, or if the
/// allowed cores are unknown.
fn shares(n_lanes: usize) -> Vec<Option<String>> {
    let has_taskset = || Command::new("taskset").arg("--version").stdout(Stdio::null()).status().is_ok();
    let status = fs::read_to_string("/proc/self/status").unwrap_or_default();
    let allowed = status.lines().find_map(|line| line.strip_prefix("Cpus_allowed_list:")).map(cores_of);
    let Some(cores) = allowed.filter(|cores| cores.len() >= n_lanes && has_taskset()) else {
        return vec![None; n_lanes];
    };
    let share = cores.len() / n_lanes;
    let list = |cores: &[usize]| cores.iter().map(usize::to_string).collect::<Vec<_>>().join(",");
    cores.chunks_exact(share).take(n_lanes).map(|cores| Some(list(cores))).collect()
}

/// Numbers in a list such as `0-3,8`.
fn cores_of(list: &str) -> Vec<usize> {
    let ranges = list.trim().split(',').filter_map(|range| {
        let (first, last) = range.split_once('-').unwrap_or((range, range));
        Some(first.parse().ok()?..=last.parse().ok()?)
    });
    ranges.flatten().collect()
}

fn run_job(
    job: &Job,
    logs: &Path,
    threads: &str,
    environment: &[(&str, &str)],
    share: Option<&str>,
) -> Result<(), String> {
    let log = logs.join(format!("{}.log", job.name.replace([' ', '/', '\\'], "-")));
    let cannot = |error: std::io::Error| format!("{}: {error}", log.display());
    let file = File::create(&log).map_err(cannot)?;
    let start = Instant::now();
    let mut command = match share {
        None => Command::new(&job.program),
        Some(cores) => {
            let mut command = Command::new("taskset");
            command.args(["-c", cores]).arg(&job.program);
            command
        }
    };
    command.args(&job.arguments).current_dir(&job.folder).stdin(Stdio::null());
    command.stdout(file.try_clone().map_err(cannot)?).stderr(file);
    crate::suites::forget_xtask(&mut command);
    if job.is_of_package {
        command.env("CARGO_MANIFEST_DIR", &job.folder);
    }
    command.env("RUST_TEST_THREADS", threads).envs(environment.iter().copied());
    let status = command.status().map_err(|error| format!("{}: {error}", job.program.display()))?;
    let output = fs::read(&log).map_err(cannot)?;
    // One call prints it all, so that the lanes' outputs do not mix.
    print!("{}== {}: {:.1} s\n\n", String::from_utf8_lossy(&output), job.name, start.elapsed().as_secs_f64());
    if status.success() { Ok(()) } else { Err(format!("{status}, see {}", log.display())) }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A shortened message of cargo.
    fn message(folder: &str, target: &str, test: bool) -> String {
        format!(
            "{{\"reason\":\"compiler-artifact\",\"manifest_path\":\"/w/crates/{folder}/Cargo.toml\",\
             \"target\":{{\"kind\":[\"test\"],\"name\":\"{target}\",\"test\":true}},\
             \"profile\":{{\"opt_level\":\"1\",\"test\":{test}}},\"features\":[],\
             \"executable\":\"/w/target/debug/deps/{target}-1\",\"fresh\":true}}"
        )
    }

    #[test]
    fn test_binaries_are_found_and_the_slowest_come_first() {
        let messages = [
            message("audio", "main", true),
            message("cli", "ingle", false),
            message("cli", "main", true),
            "{\"reason\":\"build-finished\",\"success\":true}".to_owned(),
        ];
        let found = jobs(&messages.join("\n"), &[]);
        let names: Vec<&str> = found.iter().map(|job| job.name.as_str()).collect();
        assert_eq!(names, ["cli main", "audio main"]);
        assert_eq!(found[0].program, Path::new("/w/target/debug/deps/main-1"));
        assert_eq!(found[0].folder, Path::new("/w/crates/cli"));
    }

    #[test]
    fn escapes_are_decoded() {
        assert_eq!(field(r#"{"executable":"C:\\a\\b.exe"}"#, "executable").as_deref(), Some(r"C:\a\b.exe"));
        assert_eq!(field(r#"{"executable":null}"#, "executable"), None);
        assert_eq!(field(r#"{"executable":"cut"#, "executable"), None);
    }

    #[test]
    fn lists_of_cores_are_read() {
        assert_eq!(cores_of("\t0-2,5,7-8\n"), [0, 1, 2, 5, 7, 8]);
        assert!(cores_of("").is_empty());
    }

    #[cfg(target_os = "linux")]
    #[test]
    fn lanes_are_bound_to_cores_of_their_own() {
        let shares = shares(2);
        if let [Some(first), Some(second)] = &shares[..] {
            let [first, second] = [cores_of(first), cores_of(second)];
            assert!(!first.is_empty() && first.len() == second.len(), "{shares:?}");
            assert!(first.iter().all(|core| !second.contains(core)), "{shares:?}");
        }
    }

    #[cfg(unix)]
    #[test]
    fn every_failure_is_named_and_the_others_still_run() {
        let logs = std::env::temp_dir().join(format!("xtask-lanes-{}", std::process::id()));
        let job = |name: &str, script: &str| Job {
            name: name.to_owned(),
            program: "sh".into(),
            arguments: vec!["-c".to_owned(), script.to_owned()],
            folder: std::env::temp_dir(),
            is_of_package: true,
        };
        let jobs = vec![
            job("bad", "echo out; exit 3"),
            job("good", "echo $RUST_TEST_THREADS $EXTRA"),
            job("worse", "exit 4"),
        ];
        let error = run(jobs, &logs, &[("EXTRA", "set")], Cores::Halved).unwrap_err();
        assert!(error.contains("bad: exit status: 3") && error.contains("worse: exit status: 4"), "{error}");
        assert!(!error.contains("good"), "{error}");
        let output = fs::read_to_string(logs.join("good.log")).unwrap();
        assert!(output.trim_end().ends_with(" set") && !output.starts_with(' '), "{output}");
        fs::remove_dir_all(logs).unwrap();
    }
}
