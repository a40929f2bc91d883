//! Where a server listens, and whom it lets in.

use std::net::{IpAddr, TcpListener};
use std::num::NonZeroU32;
use std::path::{Path, PathBuf};

use anyhow::{Context, bail, ensure};
use clap::Args;
use server::{Access, ConnectionLimits, Gate, Origins, Tls};

/// Files that are open beside connections: models, caches, the system's own.
const FILES_OF_MODELS: usize = 40;

#[derive(Args)]
#[command(next_help_heading = "Access")]
pub struct GateArgs {
    /// The address to listen at; one that other machines can reach needs --api-key or --insecure
    #[arg(long, default_value = "127.0.0.1", value_name = "IP")]
    host: IpAddr,

    /// The port to listen at; 0 takes a free one, which stderr names
    #[arg(long, default_value_t = 8080, value_name = "PORT")]
    port: u16,

    /// Answer only requests with this key; repeat for more
    #[arg(long, value_name = "KEY")]
    api_key: Vec<String>,

    /// Read keys from a file, out of sight of other users of the machine: one a line, # begins a comment
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

impl GateArgs {
    /// Listen, but answer nobody yet.
    ///
    /// # Errors
    /// The address is open to others without a key, a file is not as expected, or the port is taken.
    pub fn open(&self) -> anyhow::Result<(TcpListener, Gate)> {
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
        let listener = TcpListener::bind((self.host, self.port))
            .with_context(|| format!("listening at {}:{}", self.host, self.port))?;
        let (access, connections) = (Access::new(&keys, self.rate_limit), self.connections());
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
    let lines = text.lines().map(|line| line.split('#').next().unwrap_or(line).trim());
    Ok(lines.filter(|line| !line.is_empty()).map(str::to_owned).collect())
}
