//! `docs/configuration.md`, generated from the table of settings so that the two agree.

use crate::Cli;
use crate::config::is_advanced;
use clap::{Arg, CommandFactory};
use std::fmt::Write;

const HEAD: &str = "\
# Configuration

A setting is a flag, an environment variable and a key of a configuration file, or a key of the \
file's table `[advanced]` alone.
A flag overrides the variable, the variable the file, the file the default; an empty variable \
counts as not set.

```toml
# ebb mount --config FILE …: keys are the long names of the flags
cache-size = \"50G\"
flush-interval = \"10s\"

[advanced]
commit-interval = \"200ms\"
```

Sizes are bytes, or a number with K, M, G, T or P (powers of 1024).
Times are seconds, or a number with ms, s, m, h or d, at most 36500d.

This page is generated from the program's own table of settings.

## Storage

| URL | Storage | Credentials, in order of precedence |
|---|---|---|
| `s3://BUCKET[/PREFIX]` | S3 and compatible servers (`--endpoint`, AWS_ENDPOINT_URL_S3, \
    AWS_ENDPOINT_URL) | `--profile`; AWS_ACCESS_KEY_ID, AWS_SECRET_ACCESS_KEY, AWS_SESSION_TOKEN; \
    the profile of AWS_PROFILE in `~/.aws`; web identity (AWS_WEB_IDENTITY_TOKEN_FILE, \
    AWS_ROLE_ARN); container agent; instance role |
| `gs://BUCKET[/PREFIX]` | Google Cloud Storage (`--endpoint`; STORAGE_EMULATOR_HOST, which gets \
    no credentials) | GOOGLE_APPLICATION_CREDENTIALS: the key of a service account or the refresh \
    token of a user; the file of `gcloud auth application-default login`; the machine's service \
    account (GCE_METADATA_HOST) |
| `az://CONTAINER[@ACCOUNT][/PREFIX]` | Azure block blobs in an account with a flat namespace. \
    ACCOUNT is a name or a host (`ACCOUNT.blob.core.windows.net`); without it, \
    AZURE_STORAGE_ACCOUNT, AZURE_STORAGE_ACCOUNT_NAME or the connection string names it \
    (`--endpoint`: the URL of the blob service, as BlobEndpoint in connection strings) | \
    AZURE_STORAGE_CONNECTION_STRING; AZURE_STORAGE_KEY or AZURE_STORAGE_ACCOUNT_KEY; \
    AZURE_STORAGE_SAS_TOKEN; AZURE_TENANT_ID and AZURE_CLIENT_ID with AZURE_CLIENT_SECRET or \
    AZURE_FEDERATED_TOKEN_FILE (AZURE_AUTHORITY_HOST); managed identity (IDENTITY_ENDPOINT, the \
    machine's metadata service) |
| `file:///DIRECTORY` | A directory of any mounted file system | |

PREFIX is a directory of the bucket.
A URL is used literally: no character of it is decoded.
Credentials are not settings of ebb: they are found as by each store's own tools, renewed before \
they expire, read again when the store rejects them, and never printed.

`--request-payer` names the payer of requests: `requester` for S3 (`x-amz-request-payer`), a project
id for Google (`x-goog-user-project`). Azure has no requester pays.

## Certificates and proxies

ebb reads these variables when it opens the storage. Proxy variables exist in lower case too, which
takes precedence. A named file without a usable certificate is an error.

| Variable | Meaning |
|---|---|
| `AWS_CA_BUNDLE` | S3: file or directory of trusted PEM certificates; also `ca_bundle` of the profile |
| `SSL_CERT_FILE`, `SSL_CERT_DIR` | Trusted PEM certificates; a colon separates directories |
| `HTTPS_PROXY` | Proxy for `https` endpoints, by CONNECT: `http[s]://[USER:PASSWORD@]HOST:PORT` |
| `HTTP_PROXY` | Proxy for `http` endpoints |
| `ALL_PROXY` | Proxy for both, unless the specific variable is set |
| `NO_PROXY` | Hosts, domains, addresses and networks without a proxy, separated by commas; `*` is \
    all |

If any of the first three is set, the named certificates together replace those of the system.
A server certificate is accepted if a trusted authority signed it, or if these variables name the
certificate itself. The second rule covers self-signed certificates of `openssl req -x509`. The host
name and the validity period are checked in both cases. Requests to metadata services and
credential agents of the machine never use a proxy. Use absolute paths: the daemon of a mount runs
in `/`.

## Settings by topic

\"Command\" names the commands that have the setting: `mount`, `serve`, or both.
";

/// Every flag, below the words that people search for.
const TOPICS: &[(&str, &[&str])] = &[
    ("Mount and node", &["options", "foreground", "config", "data", "backing", "name", "listen"]),
    ("Consistency", &["consistency"]),
    ("Durability and write-back", &["ack", "flush-interval"]),
    ("Cache, disk and memory", &["cache-size", "dirty-size", "metadata-memory"]),
    ("Bucket", &["download-rate", "upload-rate", "revalidate"]),
    (
        "Storage access",
        &["endpoint", "region", "profile", "addressing", "request-payer", "anonymous"],
    ),
    ("Take-over", &["take-over"]),
    ("Replicated volumes", &["voters", "join"]),
    (
        "Encryption at rest",
        &["encryption-key-file", "encryption-key-command", "server-side-encryption", "kms-key"],
    ),
    ("Encryption in transit", &["tls", "insecure"]),
    ("Monitoring and log", &["metrics", "log"]),
];

/// The text of the page.
pub fn configuration() -> String {
    let (mut settings, mut advanced) = (Vec::<Setting>::new(), Vec::<Setting>::new());
    let mut command = Cli::command();
    command.build();
    for name in ["mount", "serve"] {
        let Some(command) = command.find_subcommand(name) else { continue };
        for arg in command.get_arguments().filter(|arg| arg.get_id() != "help") {
            let Some(long) = arg.get_long() else { continue };
            let (long, row) = (long.to_owned(), row(arg));
            let settings = if is_advanced(arg) { &mut advanced } else { &mut settings };
            match settings.iter_mut().find(|known| known.long == long && known.row == row) {
                Some(known) => known.commands.push_str(", `serve`"),
                None => settings.push(Setting { long, row, commands: format!("`{name}`") }),
            }
        }
    }
    let mut page = HEAD.to_owned();
    for (topic, flags) in TOPICS {
        writeln!(
            page,
            "\n### {topic}\n\n| Flag and key | Variable | Default | Command | Meaning \
             |\n|---|---|---|---|---|"
        )
        .expect(INFALLIBLE);
        for flag in *flags {
            let of_flag = settings.extract_if(.., |setting| setting.long == *flag);
            for Setting { long, row: [variable, default, meaning], commands } in of_flag {
                writeln!(page, "| `--{long}` | {variable} | {default} | {commands} | {meaning} |")
                    .expect(INFALLIBLE);
            }
        }
    }
    assert!(settings.is_empty(), "settings without a topic: {settings:?}");
    page.push_str(ADVANCED_HEAD);
    for Setting { long, row: [_, default, meaning], commands } in advanced {
        writeln!(page, "| `{long}` | {default} | {commands} | {meaning} |").expect(INFALLIBLE);
    }
    page.push_str(MEMBERS);
    for (key, about) in crate::member::KEYS {
        writeln!(page, "| `{key}` | {about} |").expect(INFALLIBLE);
    }
    page
}

const INFALLIBLE: &str = "a String accepts every write";

const ADVANCED_HEAD: &str = "
## Advanced

Keys of the table `[advanced]` of the configuration file.
Few installations need them, so they are neither flags nor variables.

| Key | Default | Command | Meaning |
|---|---|---|---|
";

const MEMBERS: &str = "
## Several buckets under one mount

The bucket on the command line is the volume's root bucket.
Each table `[[bucket]]` of the configuration file adds a member bucket at a directory of the root:

```toml
[[bucket]]
dir = \"logs\"
url = \"s3://logs/2026\"
profile = \"logs\"

[[bucket]]
dir = \"models\"
url = \"s3://models\"
endpoint = \"https://store.example\"
```

The settings above apply to the root bucket only.
The variables of the S3 tools (`AWS_REGION`, `AWS_ENDPOINT_URL`, `AWS_ACCESS_KEY_ID`) apply to \
each bucket whose table does not set the value; a `profile` takes precedence over keys in the \
environment.
How such a volume behaves: [several-buckets.md](semantics/several-buckets.md).

| Key | Meaning |
|---|---|
";

#[derive(Debug)]
struct Setting {
    long: String,
    /// Variable, default and meaning.
    row: [String; 3],
    commands: String,
}

fn row(arg: &Arg) -> [String; 3] {
    let variable =
        arg.get_env().map(|name| format!("`{}`", name.to_string_lossy())).unwrap_or_default();
    let default: Vec<_> =
        arg.get_default_values().iter().map(|value| value.to_string_lossy()).collect();
    let default = if default.is_empty() || default == ["false"] {
        String::new()
    } else {
        format!("`{}`", default.join(","))
    };
    let mut meaning =
        arg.get_help().map(|help| help.to_string().replace('\n', " ")).unwrap_or_default();
    if !meaning.ends_with(['.', '…']) && !meaning.is_empty() {
        meaning.push('.');
    }
    if arg.get_action().takes_values() {
        for value in arg.get_possible_values() {
            let about = value
                .get_help()
                .map(|about| format!(": {}", about.to_string().replace('\n', " ")))
                .unwrap_or_default();
            let end = if about.ends_with('.') { "" } else { "." };
            meaning.push_str(&format!(" `{}`{about}{end}", value.get_name()));
        }
    }
    [variable, default, meaning.replace('|', "\\|")]
}
