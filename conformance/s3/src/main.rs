//! The S3 server of tests, the demo and developers as a program.

use clap::Parser;
use std::io::Write;
use std::net::TcpListener;

/// An S3 server for tests and demos. It has one bucket, `bucket`, whose objects are in memory and
/// gone with the process.
///
/// It prints its endpoint (http://HOST:PORT) and serves until it is killed. Clients sign with the
/// access key `test-access` and the secret key `test-secret`, for any region, and put the bucket
/// into the path.
#[derive(Parser)]
#[command(name = "ebb-s3-server", version)]
struct Args {
    /// Where to listen. With port 0 a free one is chosen.
    #[arg(value_name = "HOST:PORT", default_value = "127.0.0.1:0")]
    address: String,
    /// Put COUNT small objects below PREFIX first, 100,000 to a directory.
    #[arg(long, num_args = 2, value_names = ["PREFIX", "COUNT"])]
    fill: Option<Vec<String>>,
}

fn main() -> std::io::Result<()> {
    let args = Args::parse();
    let (prefix, count) = match args.fill.as_deref() {
        Some([prefix, count]) => (prefix.as_str(), count.parse().map_err(std::io::Error::other)?),
        _ => ("", 0),
    };
    let listener = TcpListener::bind(&args.address)?;
    let mut out = std::io::stdout().lock();
    writeln!(out, "http://{}", listener.local_addr()?)?;
    out.flush()?;
    drop(out);
    ebb_s3_server::run(listener, ebb_s3_server::filled(prefix, count))
}

#[cfg(test)]
mod tests {
    use super::Args;
    use clap::CommandFactory;

    /// Expectation: `--help` says all that a client needs.
    #[test]
    fn help_names_bucket_and_keys() {
        let help = Args::command().render_long_help().to_string();
        for needed in [ebb_s3_server::BUCKET, ebb_s3_server::ACCESS_KEY, ebb_s3_server::SECRET_KEY]
        {
            assert!(help.contains(&format!("`{needed}`")), "{help}");
        }
        assert!(help.contains("HOST:PORT") && help.contains("127.0.0.1:0"), "{help}");
    }
}
