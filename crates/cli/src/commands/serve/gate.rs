//! The address of a server, and the requests that it accepts.

use std::fs::OpenOptions;
use std::io::Write;
use std::net::{IpAddr, TcpListener};
use std::num::NonZeroU32;
use std::path::{Path, PathBuf};

use anyhow::{Context, bail, ensure};
use clap::Args;
use server::{Access, ConnectionLimits, Gate, Origins, Tls};

use crate::tell::tell;

/// Open files that are not connections: models, caches and the system's own.
const FILES_OF_MODELS: usize = 40;

#[derive(Args)]
#[command(next_help_heading = "Access")]
pub struct GateArgs {
    /// Listen at this IP address
    ///
    /// An address that other machines can reach needs --api-key or --insecure.
    #[arg(long, default_value = "127.0.0.1", value_name = "IP", value_parser = host)]
    host: IpAddr,

    /// Listen at this port
    ///
    /// 0 chooses a free port, which is printed on stderr.
    #[arg(long, default_value_t = 8080, value_name = "PORT")]
    port: u16,

    /// Accept only requests with this key; repeat for more
    #[arg(long, value_name = "KEY")]
    api_key: Vec<String>,

    /// Read API keys from a file, one a line
    ///
    /// Other users of the machine cannot see keys in a file. A # at the start of a line or after
    /// white space begins a comment.
    #[arg(long, value_name = "FILE")]
    api_key_file: Option<PathBuf>,

    /// Refuse more than N requests a minute of a key with 429
    #[arg(long, value_name = "N")]
    rate_limit: Option<NonZeroU32>,

    /// Keep at most N connections open
    ///
    /// A further connection closes one that is idle, or is refused. The limit is lower if the
    /// system allows fewer open files.
    #[arg(long, default_value_t = ConnectionLimits::default().all, value_name = "N")]
    max_connections: usize,

    /// Keep at most N connections of one IP address open
    #[arg(long, default_value_t = ConnectionLimits::default().by_address, value_name = "N")]
    max_connections_per_address: usize,

    /// Allow other machines to connect without a key
    #[arg(long)]
    insecure: bool,

    /// Answer web pages of this origin; repeat for more
    ///
    /// For example https://chat.example.org, or * for all.
    #[arg(long, value_name = "ORIGIN")]
    allow_origin: Vec<String>,

    /// Accept requests to this host name; repeat for more
    ///
    /// Host names are checked only at a loopback address without a key.
    #[arg(long, value_name = "NAME")]
    allow_host: Vec<String>,

    /// Serve HTTPS with this certificate (PEM)
    ///
    /// SIGHUP makes the server read the file again.
    #[arg(long, value_name = "FILE", requires = "tls_key")]
    tls_cert: Option<PathBuf>,

    /// The private key of --tls-cert (PEM)
    #[arg(long, value_name = "FILE", requires = "tls_cert")]
    tls_key: Option<PathBuf>,
}

/// Parses `--host`: an address or localhost, the only name that is the same on every machine.
fn host(text: &str) -> Result<IpAddr, String> {
    match text {
        "localhost" => Ok(IpAddr::V4(std::net::Ipv4Addr::LOCALHOST)),
        text => text
            .parse()
            .map_err(|_| "expected an IP address such as 127.0.0.1 or 0.0.0.0, or localhost".to_owned()),
    }
}

impl GateArgs {
    /// Opens the port, without answering requests yet. A secret in the folder `prefix_cache`
    /// separates the cached prompts of different keys across restarts.
    ///
    /// # Errors
    /// The address is open to other machines without a key, a file is invalid, or the port is in
    /// use.
    pub fn open(&self, prefix_cache: Option<&Path>) -> anyhow::Result<(TcpListener, Gate)> {
        let keys = self.keys()?;
        if !self.host.is_loopback() && keys.is_empty() && !self.insecure {
            bail!(
                "other machines can reach {} and could use the models; set --api-key, or allow this with --insecure",
                self.host
            );
        }
        let mut origins = Origins::new(&self.allow_origin).map_err(anyhow::Error::msg)?;
        if self.host.is_loopback() && keys.is_empty() {
            origins = origins.only_hosts(&self.allow_host);
        }
        let tls = self.tls_cert.as_deref().zip(self.tls_key.as_deref());
        let tls = tls.map(|(cert, key)| Tls::open(cert, key)).transpose()?;
        let secret = match prefix_cache {
            // Without the secret, cached prompts are lost at the next start; so the error is a
            // warning.
            Some(folder) if !keys.is_empty() => kept_secret(folder).or_else(|error| {
                tell!("warning: {error:#}");
                new_secret()
            })?,
            _ => new_secret()?,
        };
        let listener = TcpListener::bind((self.host, self.port))
            .with_context(|| format!("listening at {}:{}", self.host, self.port))?;
        let (access, connections) = (Access::new(&keys, &secret, self.rate_limit), self.connections());
        Ok((listener, Gate { access, origins, tls, connections }))
    }

    /// The limits of connections: those of the flags, and at most the open files that the system
    /// allows.
    fn connections(&self) -> ConnectionLimits {
        let files =
            platform::raise_open_files().map_or(usize::MAX, |n| usize::try_from(n).unwrap_or(usize::MAX));
        let most = files.saturating_sub(FILES_OF_MODELS).max(1);
        let all = self.max_connections.clamp(1, most);
        if all < self.max_connections {
            tracing::info!(
                "the system allows {files} open files, so at most {all} connections are kept open"
            );
        }
        ConnectionLimits { all, by_address: self.max_connections_per_address.clamp(1, all) }
    }

    fn keys(&self) -> anyhow::Result<Vec<String>> {
        let mut keys = self.api_key.clone();
        ensure!(!keys.iter().any(String::is_empty), "--api-key is empty, expected a key");
        if let Some(file) = &self.api_key_file {
            let found = read_keys(file)?;
            ensure!(!found.is_empty(), "{} has no key, expected one a line", file.display());
            keys.extend(found);
        }
        Ok(keys)
    }
}

fn read_keys(file: &Path) -> anyhow::Result<Vec<String>> {
    let text = std::fs::read_to_string(file).with_context(|| format!("reading {}", file.display()))?;
    // Editors on Windows begin a file with a byte order mark.
    let text = text.trim_start_matches('\u{feff}');
    let lines = text.lines().map(|line| without_comment(line).trim());
    Ok(lines.filter(|line| !line.is_empty()).map(str::to_owned).collect())
}

/// The line without its comment. A `#` inside a key begins no comment.
fn without_comment(line: &str) -> &str {
    let begins = |at: usize| line[..at].chars().next_back().is_none_or(char::is_whitespace);
    let comment = line.match_indices('#').map(|(at, _)| at).find(|&at| begins(at));
    &line[..comment.unwrap_or(line.len())]
}

/// File name of [`kept_secret`].
const SECRET: &str = "tenants.secret";

/// The secret in a folder, from which the name of each key's cached prompts is derived. It is
/// created if missing.
fn kept_secret(folder: &Path) -> anyhow::Result<[u8; 32]> {
    let file = folder.join(SECRET);
    let read = || std::fs::read(&file);
    let kept = match read() {
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => {
            private_folder(folder).with_context(|| format!("--prefix-cache {}", folder.display()))?;
            let mut options = OpenOptions::new();
            options.write(true).create_new(true);
            #[cfg(unix)]
            std::os::unix::fs::OpenOptionsExt::mode(&mut options, 0o600);
            let secret = new_secret()?;
            match options.open(&file).and_then(|mut out| out.write_all(&secret)) {
                Ok(()) => return Ok(secret),
                // Another server has just created the file.
                Err(error) if error.kind() == std::io::ErrorKind::AlreadyExists => read(),
                Err(error) => Err(error),
            }
        }
        kept => kept,
    };
    let kept = kept.with_context(|| format!("--prefix-cache: {}", file.display()))?;
    let n_bytes = kept.len();
    kept.try_into().map_err(|_| {
        anyhow::anyhow!(
            "--prefix-cache: {} has {n_bytes} bytes, expected 32; delete the file",
            file.display()
        )
    })
}

/// Creates a folder that other users cannot read.
fn private_folder(folder: &Path) -> std::io::Result<()> {
    let mut builder = std::fs::DirBuilder::new();
    builder.recursive(true);
    #[cfg(unix)]
    std::os::unix::fs::DirBuilderExt::mode(&mut builder, 0o700);
    builder.create(folder)
}

fn new_secret() -> anyhow::Result<[u8; 32]> {
    let mut secret = [0; 32];
    getrandom::fill(&mut secret)
        .map_err(std::io::Error::other)
        .context("reading the system's random numbers")?;
    Ok(secret)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_comment_begins_a_line_or_follows_white_space() {
        for (line, key) in [
            ("sk-a#b", "sk-a#b"),
            ("sk-a #b", "sk-a"),
            ("sk-a\t# of the house", "sk-a"),
            ("#sk-a", ""),
            ("  # sk-a", ""),
            ("a#b#c #d", "a#b#c"),
            ("a##", "a##"),
            ("é#ü", "é#ü"),
        ] {
            assert_eq!(without_comment(line).trim(), key, "{line:?}");
        }
        let file = tempfile::NamedTempFile::new().unwrap();
        std::fs::write(&file, "\u{feff}a#1\r\n\r\n# no\r\nb # two\r\n").unwrap();
        assert_eq!(read_keys(file.path()).unwrap(), ["a#1", "b"]);
    }

    #[test]
    fn a_secret_is_kept_and_nobody_else_can_read_it() {
        let folder = tempfile::tempdir().unwrap();
        let folder = folder.path().join("a/b");
        let secret = kept_secret(&folder).unwrap();
        assert_eq!(kept_secret(&folder).unwrap(), secret);
        assert_ne!(new_secret().unwrap(), secret);
        #[cfg(unix)]
        {
            use std::os::unix::fs::PermissionsExt;
            let mode = |path: &Path| std::fs::metadata(path).unwrap().permissions().mode() & 0o777;
            assert_eq!((mode(&folder), mode(&folder.join(SECRET))), (0o700, 0o600));
        }
        std::fs::write(folder.join(SECRET), "short").unwrap();
        assert!(kept_secret(&folder).unwrap_err().to_string().contains("5 bytes, expected 32"));
    }
}
