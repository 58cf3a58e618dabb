//! `docs/configuration.md`, made from the table of settings so that it cannot say
//! anything else.

use crate::Cli;
use clap::{Arg, CommandFactory};
use std::fmt::Write;

const HEAD: &str = "\
# Settings

Every setting is a flag, an environment variable and a key of a configuration file
(`--config FILE`, TOML, the key is the flag's long name: `cache-size = \"50G\"`). The flag
counts before the variable, the variable before the file, the file before the default. A
variable that is empty counts as not set.

Sizes are bytes, or a number with K, M, G, T or P (powers of 1024). Times are seconds, or a
number with ms, s, m, h or d, 36500d at most.

## Storage

| URL | What it is | Where credentials are looked for, in this order |
|---|---|---|
| `s3://BUCKET[/PREFIX]` | S3, and what speaks its protocol (`--endpoint`, AWS_ENDPOINT_URL_S3, \
    AWS_ENDPOINT_URL) | `--profile`; AWS_ACCESS_KEY_ID, AWS_SECRET_ACCESS_KEY, AWS_SESSION_TOKEN; \
    the profile of AWS_PROFILE in `~/.aws`; web identity (AWS_WEB_IDENTITY_TOKEN_FILE, \
    AWS_ROLE_ARN); container agent; instance role |
| `gs://BUCKET[/PREFIX]` | Google Cloud Storage (`--endpoint`, STORAGE_EMULATOR_HOST, which is not \
    given credentials) | GOOGLE_APPLICATION_CREDENTIALS: a service account's key or a user's \
    refresh token; the file of `gcloud auth application-default login`; the machine's service \
    account (GCE_METADATA_HOST) |
| `az://CONTAINER[@ACCOUNT][/PREFIX]` | Azure block blobs in an account with a flat namespace. \
    ACCOUNT is its name, or its host (`ACCOUNT.blob.core.windows.net`); without it \
    AZURE_STORAGE_ACCOUNT, AZURE_STORAGE_ACCOUNT_NAME or the connection string say it \
    (`--endpoint`: the URL of the blob service, as BlobEndpoint is in connection strings) | \
    AZURE_STORAGE_CONNECTION_STRING; AZURE_STORAGE_KEY or AZURE_STORAGE_ACCOUNT_KEY; \
    AZURE_STORAGE_SAS_TOKEN; AZURE_TENANT_ID and AZURE_CLIENT_ID with AZURE_CLIENT_SECRET or \
    AZURE_FEDERATED_TOKEN_FILE (AZURE_AUTHORITY_HOST); managed identity (IDENTITY_ENDPOINT, the \
    machine's metadata service) |
| `file:///DIRECTORY` | A directory of any mounted file system | |

A URL is taken as it stands; nothing in it is decoded. PREFIX is a directory of the bucket.
`--anonymous` asks without credentials, as for public buckets.

Credentials are no settings of ebb: they are found as each store's own tools find them,
renewed before they expire, read again when the store doubts them, and never printed.

This page is made from the program's own table; a test compares the two.
";

/// The text of the page.
pub fn configuration() -> String {
    let mut page = HEAD.to_owned();
    let mut command = Cli::command();
    command.build();
    for name in ["mount", "serve"] {
        let Some(command) = command.find_subcommand(name) else { continue };
        write(&mut page, name, command.get_arguments())
            .expect("a String takes whatever is written to it");
    }
    page.push_str(MEMBERS);
    for (key, about) in crate::member::KEYS {
        writeln!(page, "| `{key}` | {about} |").expect("a String takes whatever is written to it");
    }
    page
}

const MEMBERS: &str = "
## Several buckets under one mount

The bucket on the command line is the volume's root bucket. Each table `[[bucket]]` of the
configuration file puts another one, a member, at a directory of the root:

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

The flags and variables above are about the root bucket; a member takes none of them. What the S3
tools' own variables say (`AWS_REGION`, `AWS_ENDPOINT_URL`, `AWS_ACCESS_KEY_ID`) counts for each
bucket whose table does not say it; a `profile` counts before the keys in the environment. How such
a volume behaves: [several-buckets.md](semantics/several-buckets.md).

| Key | What it is |
|---|---|
";

fn write<'a>(
    page: &mut String,
    command: &str,
    args: impl Iterator<Item = &'a Arg>,
) -> std::fmt::Result {
    writeln!(
        page,
        "\n## ebb {command}\n\n| Flag and key | Variable | Default | What it is \
         |\n|---|---|---|---|"
    )?;
    for arg in args.filter(|arg| arg.get_id() != "help") {
        let Some(long) = arg.get_long() else { continue };
        let variable =
            arg.get_env().map(|name| name.to_string_lossy().into_owned()).unwrap_or_default();
        let default: Vec<_> =
            arg.get_default_values().iter().map(|value| value.to_string_lossy()).collect();
        let default = if default.is_empty() || default == ["false"] {
            String::new()
        } else {
            format!("`{}`", default.join(","))
        };
        let values = arg.get_possible_values();
        let values: Vec<_> = values.iter().filter(|_| arg.get_action().takes_values()).collect();
        let mut help =
            arg.get_help().map(|help| help.to_string().replace('\n', " ")).unwrap_or_default();
        if !help.ends_with(['.', '…']) && !help.is_empty() {
            help.push('.');
        }
        for value in values {
            let about = value
                .get_help()
                .map(|about| format!(": {}", about.to_string().replace('\n', " ")))
                .unwrap_or_default();
            write!(
                help,
                " `{}`{about}{}",
                value.get_name(),
                if about.ends_with('.') { "" } else { "." }
            )?;
        }
        writeln!(page, "| `--{long}` | `{variable}` | {default} | {} |", help.replace('|', "\\|"))?;
    }
    Ok(())
}
