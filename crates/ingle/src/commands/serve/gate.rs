//! Where a server listens, and whom it lets in.

use std::fs::OpenOptions;
use std::io::Write;
use std::net::{IpAddr, TcpListener};
use std::num::NonZeroU32;
use std::path::{Path, PathBuf};

use anyhow::{Context, bail, ensure};
use clap::Args;
use server::{Access, ConnectionLimits, Gate, Origins, Tls};

use crate::tell::tell;

/// Files that are open beside connections: models, caches, the system's own.
const FILES_OF_MODELS: usize = 40;

#[derive(Args)]
#[command(next_help_heading = "Access")]
pub struct GateArgs {
    /// The address to listen at; one that other machines can reach needs --api-key or --insecure
    #[arg(long, default_value = "127.0.0.1", value_name = "IP", value_parser = host)]
    host: IpAddr,

    /// The port to listen at; 0 takes a free one, which stderr names
    #[arg(long, default_value_t = 8080, value_name = "PORT")]
    port: u16,

    /// Answer only requests with this key; repeat for more
    #[arg(long, value_name = "KEY")]
    api_key: Vec<String>,

    /// Read keys from a file, out of sight of other users of the machine: one a line; # begins a comment where a line
    /// begins, or after white space
    #[arg(long, value_name = "FILE")]
    api_key_file: Option<PathBuf>,

    /// How many requests a key may send in a minute; more are refused with 429
    #[arg(long, value_name = "N")]
    rate_limit: Option<NonZeroU32>,

    /// Connections at once; whoever opens more ends one that waits for a request, or is refused. Fewer where the system allows fewer
    /// open files
    #[arg(long, default_value_t = ConnectionLimits::default().all, value_name = "N")]
    max_connections: usize,

    /// The same of one address
    #[arg(long, default_value_t = ConnectionLimits::default().by_address, value_name = "N")]
    max_connections_per_address: usize,

    /// Listen without a key, also at an address that other machines can reach
    #[arg(long)]
    insecure: bool,

    /// Answer requests from web pages of this origin (https://chat.example.org, or * for all); repeat for more
    #[arg(long, value_name = "ORIGIN")]
    allow_origin: Vec<String>,

    /// Accept this host name too, when listening at a loopback address without a key; repeat for more
    #[arg(long, value_name = "NAME")]
    allow_host: Vec<String>,

    /// Answer over HTTPS with this certificate in PEM; SIGHUP reads it again
    #[arg(long, value_name = "FILE", requires = "tls_key")]
    tls_cert: Option<PathBuf>,

    /// The certificate's private key in PEM
    #[arg(long, value_name = "FILE", requires = "tls_cert")]
    tls_key: Option<PathBuf>,
}

/// `--host`: an address, or the one name that means the same everywhere.
fn host(text: &str) -> Result<IpAddr, String> {
    match text {
        "localhost" => Ok(IpAddr::V4(std::net::Ipv4Addr::LOCALHOST)),
        text => text
            .parse()
            .map_err(|_| "expected an IP address such as 127.0.0.1 or 0.0.0.0, or localhost".to_owned()),
    }
}

impl GateArgs {
    /// Listen, but answer nobody yet. What is kept of a key in `prefix_cache` is found again by a secret that is kept there, too.
    ///
    /// # Errors
    /// The address is open to others without a key, a file is not as expected, or the port is taken.
    pub fn open(&self, prefix_cache: Option<&Path>) -> anyhow::Result<(TcpListener, Gate)> {
        let keys = self.keys()?;
        if !self.host.is_loopback() && keys.is_empty() && !self.insecure {
            bail!(
                "{} can be reached from other machines, and anybody there could use the models; give --api-key, or \
                 --insecure if that is what you want",
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
            // Without it, prefixes are not found again after the next start, and nothing else.
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

    /// As many connections as were asked for, and as there are files for beside those of models.
    fn connections(&self) -> ConnectionLimits {
        let files =
            platform::raise_open_files().map_or(usize::MAX, |n| usize::try_from(n).unwrap_or(usize::MAX));
        let most = files.saturating_sub(FILES_OF_MODELS).max(1);
        let all = self.max_connections.clamp(1, most);
        if all < self.max_connections {
            tracing::info!("{files} open files are allowed, so {all} connections are");
        }
        ConnectionLimits { all, by_address: self.max_connections_per_address.clamp(1, all) }
    }

    fn keys(&self) -> anyhow::Result<Vec<String>> {
        let mut keys = self.api_key.clone();
        ensure!(!keys.iter().any(String::is_empty), "an --api-key is empty");
        if let Some(file) = &self.api_key_file {
            let found = read_keys(file)?;
            ensure!(!found.is_empty(), "{} holds no key, expected one in each line", file.display());
            keys.extend(found);
        }
        Ok(keys)
    }
}

fn read_keys(file: &Path) -> anyhow::Result<Vec<String>> {
    let text = std::fs::read_to_string(file).with_context(|| format!("reading {}", file.display()))?;
    // Editors of Windows begin a file with a mark.
    let text = text.trim_start_matches('\u{feff}');
    let lines = text.lines().map(|line| without_comment(line).trim());
    Ok(lines.filter(|line| !line.is_empty()).map(str::to_owned).collect())
}

/// A key may have a `#` in it.
fn without_comment(line: &str) -> &str {
    let begins = |at: usize| line[..at].chars().next_back().is_none_or(char::is_whitespace);
    let comment = line.match_indices('#').map(|(at, _)| at).find(|&at| begins(at));
    &line[..comment.unwrap_or(line.len())]
}

/// The name of the file of [`kept_secret`].
const SECRET: &str = "tenants.secret";

/// The secret in a folder, by which the prefixes of a key are found again; made where there is none.
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
                // Another server has just made it.
                Err(error) if error.kind() == std::io::ErrorKind::AlreadyExists => read(),
                Err(error) => Err(error),
            }
        }
        kept => kept,
    };
    let kept = kept.with_context(|| format!("--prefix-cache: {}", file.display()))?;
    let n_bytes = kept.len();
    kept.try_into().map_err(|_| {
        anyhow::anyhow!("--prefix-cache: {} has {n_bytes} bytes, expected 32; delete it", file.display())
    })
}

/// A folder that nobody else may look into.
fn private_folder(folder: &Path) -> std::io::Result<()> {
    let mut builder = std::fs::DirBuilder::new();
    builder.recursive(true);
    #[cfg(unix)]
    std::os::unix::fs::DirBuilderExt::mode(&mut builder, 0o700);
    builder.create(folder)
}

fn new_secret() -> anyhow::Result<[u8; 32]> {
    let mut secret = [0; 32];
    getrandom::fill(&mut secret).map_err(std::io::Error::other).context("the system's randomness")?;
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
