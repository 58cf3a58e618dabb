//! The bucket port over S3, Google Cloud Storage, Azure blobs, a directory of any mounted
//! file system, and memory.
//!
//! [`open`] takes a URL and gives a bucket that has answered. All back ends pass one
//! suite ([`suite`], behind the feature of that name).

mod azure;
mod background;
mod directory;
#[cfg(feature = "fuzz")]
pub mod fuzz;
mod gcs;
mod http;
mod location;
mod memory;
mod prefixed;
mod s3;
#[cfg(feature = "suite")]
pub mod suite;
mod tags;

pub use memory::Memory;
pub use prefixed::Prefixed;

use ebb_ports::{Bucket, BucketError};
use location::Location;
use std::fmt;
use std::rc::Rc;
use std::time::Duration;
use thiserror::Error;

/// Settings that are not part of the URL. Every field documents its default.
#[derive(Clone, Default)]
pub struct BucketSettings {
    /// `http[s]://host[:port][/path]` of the store. Default for S3: AWS_ENDPOINT_URL_S3,
    /// AWS_ENDPOINT_URL, the profile's `endpoint_url`, AWS itself; for Google:
    /// STORAGE_EMULATOR_HOST, Google itself; for Azure: the connection string's, the account's.
    pub endpoint: Option<String>,
    /// S3 only. Default: AWS_REGION, AWS_DEFAULT_REGION, the profile's, `us-east-1`.
    pub region: Option<String>,
    /// S3 only. The bucket in the path of requests, not in the host name. Default: where an
    /// endpoint is given.
    pub path_style: Option<bool>,
    /// S3 only. With `secret_key`: signs with these, and uses no other source.
    pub access_key: Option<String>,
    pub secret_key: Option<String>,
    pub session_token: Option<String>,
    /// S3 only. Credentials of this profile, before those of the environment.
    pub profile: Option<String>,
    /// S3 only. The encryption that the store must apply to objects; the bucket's default if
    /// `None`.
    pub server_side_encryption: Option<ServerSideEncryption>,
    /// S3 and Google. The key that the store must encrypt objects with.
    pub kms_key: Option<String>,
    /// Payer of requests: `requester` of S3, a project of Google. The bucket's owner by default.
    pub request_payer: Option<String>,
    /// Requests are not signed: public buckets.
    pub anonymous: bool,
    /// How long the opening retries after passing faults of the store. Default: 60 s.
    pub patience: Option<Duration>,
    /// Nothing will be written, so opening tests no permission to write, and conditions are
    /// reported as not kept.
    pub read_only: bool,
}

/// The owner of the encryption key.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum ServerSideEncryption {
    /// The store's own.
    Aes256,
    /// A key of the store's key management service.
    Kms,
    /// The same, in two layers.
    KmsDsse,
}

impl BucketSettings {
    pub(crate) fn patience(&self) -> Duration {
        self.patience.unwrap_or(PATIENCE)
    }
}

impl fmt::Debug for BucketSettings {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let hidden = |secret: &Option<String>| secret.as_ref().map(|_| "(secret)");
        f.debug_struct("BucketSettings")
            .field("endpoint", &self.endpoint)
            .field("region", &self.region)
            .field("path_style", &self.path_style)
            .field("access_key", &self.access_key)
            .field("secret_key", &hidden(&self.secret_key))
            .field("session_token", &hidden(&self.session_token))
            .field("profile", &self.profile)
            .field("server_side_encryption", &self.server_side_encryption)
            .field("kms_key", &self.kms_key)
            .field("request_payer", &self.request_payer)
            .field("anonymous", &self.anonymous)
            .field("patience", &self.patience)
            .field("read_only", &self.read_only)
            .finish()
    }
}

/// Why a bucket cannot be used; the text names the fault and the remedy.
#[derive(Debug, Error)]
pub enum OpenError {
    #[error(
        "{url:?} is no storage URL: {why}; use s3://BUCKET[/PREFIX], gs://BUCKET[/PREFIX], \
         az://CONTAINER[@ACCOUNT][/PREFIX] or file:///DIRECTORY"
    )]
    Url { url: String, why: String },
    #[error("{url}: {what}")]
    Settings { url: String, what: String },
    #[error("{url}: no such bucket at {endpoint}; create it, or check its name and the endpoint")]
    NoBucket { url: String, endpoint: String },
    #[error("{url}: cannot be reached: {what}")]
    Unreachable { url: String, what: String },
    #[error("{url}: access denied: {what}")]
    Forbidden { url: String, what: String },
    #[error("{url}: the store does not do its part now: {error}; try again later")]
    Busy { url: String, error: BucketError },
    #[error("{url}: can be read but not written: {error}; grant the rights, or mount it read-only")]
    Write { url: String, error: BucketError },
    #[error("threads for the storage cannot be started: {error}")]
    Threads { error: std::io::Error },
}

impl OpenError {
    /// Something answered that is not the store.
    pub(crate) fn stranger(url: String, protocol: &str) -> OpenError {
        OpenError::Unreachable {
            url,
            what: format!(
                "what answers there does not speak the {protocol} protocol; check the endpoint"
            ),
        }
    }

    /// Trying out how the store writes has ended so, after it was read.
    pub(crate) fn unwritten(url: String, error: BucketError) -> OpenError {
        match error {
            BucketError::Unavailable { .. } => OpenError::Busy { url, error },
            _ => OpenError::Write { url, error },
        }
    }
}

/// The canonical URL of a store: the same for every spelling of `url`.
pub fn address(url: &str) -> Result<String, OpenError> {
    Ok(Location::parse(url)?.address())
}

/// `url`, or for a directory the URL of its real path, so that a bucket opened with it has one
/// description for all spellings.
pub fn with_real_path(url: &str) -> Result<String, OpenError> {
    let location = Location::parse(url)?;
    let is_directory = matches!(location, Location::Directory { .. });
    Ok(if is_directory { location.address() } else { url.into() })
}

/// Opens the store at `url` and sends it a first request, so a misspelt, unreachable or forbidden
/// one is reported at once: `s3://bucket[/prefix]`, `gs://bucket[/prefix]`,
/// `az://container[@account][/prefix]`, `file:///directory`, `mem://` (a new, empty bucket of this
/// process, for tests).
pub async fn open(url: &str, settings: &BucketSettings) -> Result<Rc<dyn Bucket>, OpenError> {
    let location = Location::parse(url)?;
    location
        .check_encryption(settings)
        .and_then(|()| location.check_payer(settings))
        .map_err(|what| OpenError::Settings { url: url.into(), what: what.into() })?;
    match location {
        Location::S3 { bucket, prefix } => {
            let store = s3::open(&bucket, &prefix, settings).await?;
            Ok(Prefixed::over(Rc::new(store), &prefix))
        }
        Location::Google { bucket, prefix } => {
            let store = gcs::open(&bucket, &prefix, settings).await?;
            Ok(Prefixed::over(Rc::new(store), &prefix))
        }
        Location::Azure { container, account, prefix } => {
            let store = azure::open(&container, &account, &prefix, settings).await?;
            Ok(Prefixed::over(Rc::new(store), &prefix))
        }
        Location::Directory { path } => {
            Ok(Rc::new(directory::Directory::open(&path, settings.read_only).await?))
        }
        Location::Memory { prefix } => Ok(Prefixed::over(Rc::new(Memory::new()), &prefix)),
    }
}

/// How long an opening retries after passing faults.
const PATIENCE: Duration = Duration::from_secs(60);
