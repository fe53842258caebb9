//! The command line: what the options are called and what they default to. Must not know what they cause.

use std::net::SocketAddr;
use std::path::PathBuf;

/// Everything the command line decides.
#[derive(Debug, Clone)]
pub struct Options {
    /// Where the first node listens; further nodes take the ports after it, or free ones when the port is 0.
    pub listen: SocketAddr,
    pub nodes: usize,
    /// Empty: every call is accepted, whatever credentials it brings.
    pub accounts: Vec<Account>,
    /// Certificate chain and key, when sessions are served over TLS.
    pub tls: Option<(PathBuf, PathBuf)>,
    pub load: Option<PathBuf>,
    pub retry_validity_nanos: i64,
    pub transaction_idle_nanos: i64,
    pub frozen_time: bool,
    pub exit_with_parent: bool,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Account {
    pub user: String,
    pub password: String,
}

pub const DEFAULT_USER: &str = "default";

pub const USAGE: &str = "\
usage: nervix-loopback [options]

An embedded stand-in for a Nervix cluster, for development and tests. It is not a Nervix server.

  --listen ADDR:PORT      where the first node listens (default 127.0.0.1:47391; port 0 picks a free one)
  --nodes 1|3             session endpoints over one shared state, the first of them leading (default 1)
  --user NAME             the user of the next --password (default `default`)
  --password TEXT         require Basic credentials; repeat --user and --password for more accounts.
                          Without it every call is accepted
  --tls-cert FILE.pem     serve sessions over TLS with this certificate chain, and with the key of
  --tls-key FILE.pem      the second file; all session addresses are https then
  --load FILE.nspl        run the file's statements one by one before serving; USE is honoured
  --retry-validity 15m    how long a command's outcome can be recovered under its execution reference
  --transaction-idle 15m  how long a transaction stays open when nothing renews it
  --frozen-time           the node's clock stands still until the control endpoint moves it
  --exit-with-parent      end when standard input reaches its end
  --help                  print this
";

/// What the command line asks for.
#[derive(Debug)]
pub enum Parsed {
    Run(Options),
    Help,
}

/// Reads the arguments after the program's name; an error is one sentence for the person who wrote them.
pub fn parse(arguments: impl IntoIterator<Item = String>) -> Result<Parsed, String> {
    let mut options = Options {
        listen: SocketAddr::from(([127, 0, 0, 1], 47391)),
        nodes: 1,
        accounts: Vec::new(),
        tls: None,
        load: None,
        retry_validity_nanos: 15 * 60 * 1_000_000_000,
        transaction_idle_nanos: 15 * 60 * 1_000_000_000,
        frozen_time: false,
        exit_with_parent: false,
    };
    let mut user = DEFAULT_USER.to_owned();
    let (mut certificate, mut key) = (None, None);
    let mut arguments = arguments.into_iter();
    while let Some(argument) = arguments.next() {
        let mut value = || {
            arguments
                .next()
                .ok_or_else(|| format!("{argument} needs a value"))
        };
        match argument.as_str() {
            "--listen" => options.listen = listen(&value()?)?,
            "--nodes" => {
                options.nodes = match value()?.as_str() {
                    "1" => 1,
                    "3" => 3,
                    other => return Err(format!("--nodes is 1 or 3, not `{other}`")),
                }
            }
            "--user" => user = value()?,
            "--password" => {
                if user.contains(':') {
                    return Err(
                        "--user must not contain a colon, which Basic credentials use as separator"
                            .to_owned(),
                    );
                }
                let password = value()?;
                options.accounts.push(Account {
                    user: user.clone(),
                    password,
                });
            }
            "--tls-cert" => certificate = Some(PathBuf::from(value()?)),
            "--tls-key" => key = Some(PathBuf::from(value()?)),
            "--load" => options.load = Some(PathBuf::from(value()?)),
            "--retry-validity" => {
                let text = value()?;
                options.retry_validity_nanos =
                    duration_nanos(&text).map_err(|error| format!("--retry-validity: {error}"))?;
            }
            "--transaction-idle" => {
                let text = value()?;
                options.transaction_idle_nanos = duration_nanos(&text)
                    .map_err(|error| format!("--transaction-idle: {error}"))?;
            }
            "--frozen-time" => options.frozen_time = true,
            "--exit-with-parent" => options.exit_with_parent = true,
            "--help" | "-h" => return Ok(Parsed::Help),
            other => {
                return Err(format!(
                    "unknown option `{other}`; --help lists the options"
                ))
            }
        }
    }
    options.tls = match (certificate, key) {
        (Some(certificate), Some(key)) => Some((certificate, key)),
        (None, None) => None,
        _ => return Err("--tls-cert and --tls-key come together".to_owned()),
    };
    Ok(Parsed::Run(options))
}

fn listen(text: &str) -> Result<SocketAddr, String> {
    let address: SocketAddr = text.parse().map_err(|_| {
        format!("--listen is an address and port such as 127.0.0.1:0, not `{text}`")
    })?;
    if !address.ip().is_loopback() {
        return Err(format!(
            "--listen serves loopback addresses only, and {} is none",
            address.ip()
        ));
    }
    Ok(address)
}

/// A duration such as `15m`, in nanoseconds: a whole number and one of ns, us, ms, s, m, h.
pub fn duration_nanos(text: &str) -> Result<i64, String> {
    let complaint = || {
        format!(
            "`{text}` is no duration; write a whole number and ns, us, ms, s, m or h, such as 15m"
        )
    };
    let digits = text.len() - text.trim_start_matches(|c: char| c.is_ascii_digit()).len();
    let (number, unit) = text.split_at_checked(digits).ok_or_else(complaint)?;
    let scale: i64 = match unit {
        "ns" => 1,
        "us" => 1_000,
        "ms" => 1_000_000,
        "s" => 1_000_000_000,
        "m" => 60 * 1_000_000_000,
        "h" => 3_600 * 1_000_000_000,
        _ => return Err(complaint()),
    };
    let number: i64 = number.parse().map_err(|_| complaint())?;
    number.checked_mul(scale).ok_or_else(complaint)
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, clippy::panic)]
    use super::*;

    fn run(arguments: &[&str]) -> Result<Options, String> {
        match parse(arguments.iter().map(|&argument| argument.to_owned()))? {
            Parsed::Run(options) => Ok(options),
            Parsed::Help => panic!("not a request for help"),
        }
    }

    #[test]
    fn the_defaults_are_the_documented_ones() {
        let options = run(&[]).unwrap();
        assert_eq!(options.listen.to_string(), "127.0.0.1:47391");
        assert_eq!(options.nodes, 1);
        assert!(options.accounts.is_empty());
        assert_eq!(options.retry_validity_nanos, 900_000_000_000);
        assert_eq!(options.transaction_idle_nanos, 900_000_000_000);
    }

    #[test]
    fn a_password_belongs_to_the_user_named_before_it() {
        let options = run(&["--password", "a", "--user", "ann", "--password", "b"]).unwrap();
        let users: Vec<_> = options
            .accounts
            .iter()
            .map(|account| (account.user.as_str(), account.password.as_str()))
            .collect();
        assert_eq!(users, [("default", "a"), ("ann", "b")]);
    }

    #[test]
    fn what_cannot_be_meant_is_refused_with_a_sentence() {
        for arguments in [
            &["--nodes", "2"][..],
            &["--listen", "0.0.0.0:1"],
            &["--listen", "here"],
            &["--retry-validity", "15"],
            &["--retry-validity", "999999999999h"],
            &["--transaction-idle", "soon"],
            &["--load"],
            &["--verbose"],
            &["--tls-cert", "a.pem"],
            &["--tls-key", "a.pem"],
            &["--user", "a:b", "--password", "c"],
        ] {
            assert!(run(arguments).is_err(), "{arguments:?}");
        }
    }

    #[test]
    fn durations_are_read_in_every_unit() {
        assert_eq!(duration_nanos("5ns"), Ok(5));
        assert_eq!(duration_nanos("2us"), Ok(2_000));
        assert_eq!(duration_nanos("3ms"), Ok(3_000_000));
        assert_eq!(duration_nanos("1s"), Ok(1_000_000_000));
        assert_eq!(duration_nanos("15m"), Ok(900_000_000_000));
        assert_eq!(duration_nanos("1h"), Ok(3_600_000_000_000));
    }
}
