//! HTTP for requests to stores: sends one request, reads its whole answer, and reports with a
//! failure whether the request may have arrived.

use super::credentials::Environment;
use super::proxies::{Connector, Proxies};
use super::trust::{self, Bundle};
use bytes::{Bytes, BytesMut};
use ebb_ports::{BucketError, ObjectTags, SLOWEST_UPLOAD_BYTES_PER_SECOND};
use http_body_util::{BodyExt, Full};
use hyper::body::Incoming;
use hyper::header::{HeaderName, HeaderValue, PROXY_AUTHORIZATION};
use hyper::{HeaderMap, Request, Response, StatusCode};
use hyper_rustls::{HttpsConnector, HttpsConnectorBuilder};
use hyper_util::client::legacy::connect::HttpConnector;
use hyper_util::client::legacy::{Client, Error as ClientError};
use hyper_util::rt::{TokioExecutor, TokioTimer};
use std::error::Error;
use std::ops::Range;
use std::time::Duration;
use tokio::sync::Semaphore;
use tokio::time::timeout;

type HttpClient = Client<HttpsConnector<Connector>, Full<Bytes>>;

pub(crate) struct Transport {
    client: HttpClient,
    proxies: Proxies,
    /// Bounds connections and the bodies in memory.
    in_flight: Semaphore,
    /// Answers in place of a store's.
    #[cfg(feature = "fuzz")]
    script: Option<std::sync::Mutex<std::collections::VecDeque<Answer>>>,
}

pub(crate) struct Answer {
    pub status: StatusCode,
    pub headers: HeaderMap,
    pub body: Bytes,
}

impl Answer {
    pub fn header(&self, name: &str) -> Option<&str> {
        self.headers.get(name)?.to_str().ok()
    }

    /// The body of an answer to GET, cut to the requested range, and the length of the whole
    /// object.
    pub fn content(
        &self,
        key: &str,
        range: Option<Range<u64>>,
    ) -> Result<(Bytes, u64), BucketError> {
        if self.header("content-length").is_some_and(|len| len.parse() != Ok(self.body.len())) {
            return Err(BucketError::Unavailable {
                what: format!("GET {key}: the body has not the announced length"),
                retry_after: None,
            });
        }
        let whole =
            self.header("content-range").and_then(|range| range.rsplit('/').next()?.parse().ok());
        let body = match (range, whole) {
            // The store does not know ranges and sent everything.
            (Some(range), None) => {
                let end = range.end.min(self.body.len() as u64) as usize;
                self.body.slice((range.start as usize).min(end)..end)
            }
            _ => self.body.clone(),
        };
        Ok((body, whole.unwrap_or(self.body.len() as u64)))
    }

    /// The user's metadata, which the store puts into headers of this beginning.
    pub fn tags(&self, prefix: &str) -> ObjectTags {
        let tag = |(name, value): (&HeaderName, &HeaderValue)| {
            Some((
                name.as_str().strip_prefix(prefix)?.to_string(),
                String::from_utf8_lossy(value.as_bytes()).into_owned(),
            ))
        };
        let mut tags: ObjectTags = self.headers.iter().filter_map(tag).collect();
        tags.sort();
        tags
    }
}

/// Why there is no answer.
#[derive(Debug)]
pub(crate) enum Lost {
    /// The request never left.
    NotSent(String),
    /// The same, and it never will: a certificate, a protocol or a name is wrong.
    Unfit(String),
    /// It may have arrived and taken effect.
    Sent(String),
}

impl Transport {
    /// For a store, with trust and proxies from the environment. Certificates of `bundle` are
    /// trusted too.
    pub fn to_store(
        environment: &Environment,
        bundle: Option<Bundle>,
    ) -> Result<Transport, String> {
        Transport::new(MAX_IN_FLIGHT, environment, bundle)
    }

    pub fn new(
        max_in_flight: usize,
        environment: &Environment,
        bundle: Option<Bundle>,
    ) -> Result<Transport, String> {
        let mut tcp = HttpConnector::new();
        tcp.enforce_http(false);
        tcp.set_nodelay(true);
        tcp.set_connect_timeout(Some(CONNECT_TIMEOUT));
        tcp.set_keepalive(Some(KEEPALIVE));
        tcp.set_tcp_user_timeout(Some(IDLE_TIMEOUT));
        let tls = trust::tls(environment, bundle)?;
        let https = || HttpsConnectorBuilder::new().with_tls_config(tls.clone()).https_or_http();
        let proxies = Proxies::named(environment)?;
        let connector = https().enable_http1().wrap_connector(Connector {
            to_proxy: https().enable_http1().wrap_connector(tcp.clone()),
            straight: tcp,
            proxies: proxies.clone(),
        });
        let client = Client::builder(TokioExecutor::new())
            .timer(TokioTimer::new())
            .pool_timer(TokioTimer::new())
            .pool_idle_timeout(POOL_IDLE)
            .pool_max_idle_per_host(max_in_flight)
            .build(connector);
        Ok(Transport {
            client,
            proxies,
            in_flight: Semaphore::new(max_in_flight),
            #[cfg(feature = "fuzz")]
            script: None,
        })
    }

    /// Nothing is sent: these are the answers, one after the other, and then there are none.
    #[cfg(feature = "fuzz")]
    pub fn scripted(answers: Vec<Answer>) -> Transport {
        static WAYS: std::sync::LazyLock<(HttpClient, Proxies)> = std::sync::LazyLock::new(|| {
            let nothing: Environment = std::sync::Arc::new(|_| None);
            let built = Transport::new(1, &nothing, None).expect("nothing is set");
            (built.client, built.proxies)
        });
        let (client, proxies) = WAYS.clone();
        Transport {
            client,
            proxies,
            in_flight: Semaphore::new(1),
            script: Some(std::sync::Mutex::new(answers.into())),
        }
    }

    /// `patience` is how long the store may take to begin its answer, beside the time for the body.
    pub async fn send(
        &self,
        mut request: Request<Full<Bytes>>,
        body_bytes: usize,
        patience: Duration,
        max_answer_bytes: u64,
    ) -> Result<Answer, Lost> {
        #[cfg(feature = "fuzz")]
        if let Some(script) = &self.script {
            let next = script
                .lock()
                .unwrap()
                .pop_front()
                .filter(|answer| answer.body.len() as u64 <= max_answer_bytes);
            return next.ok_or_else(|| Lost::Sent("no answer".into()));
        }
        let _permit = self.in_flight.acquire().await.expect("the semaphore is never closed");
        if let Some(authorization) = self.proxies.authorization(request.uri()) {
            request.headers_mut().insert(PROXY_AUTHORIZATION, authorization);
        }
        let limit =
            patience + Duration::from_secs(body_bytes as u64 / SLOWEST_UPLOAD_BYTES_PER_SECOND);
        let response = match timeout(limit, self.client.request(request)).await {
            Ok(Ok(response)) => response,
            Ok(Err(error)) => return Err(lost(error)),
            Err(_) => return Err(Lost::Sent(format!("no answer within {} s", limit.as_secs()))),
        };
        read_answer(response, max_answer_bytes).await
    }
}

async fn read_answer(response: Response<Incoming>, max_bytes: u64) -> Result<Answer, Lost> {
    let (head, mut incoming) = response.into_parts();
    let expected = head
        .headers
        .get("content-length")
        .and_then(|len| len.to_str().ok())
        .and_then(|len| len.parse().ok())
        .unwrap_or(0);
    let mut first: Option<Bytes> = None;
    let mut body = BytesMut::new();
    let mut len_bytes = 0;
    loop {
        let frame = match timeout(IDLE_TIMEOUT, incoming.frame()).await {
            Ok(None) => break,
            Ok(Some(Ok(frame))) => frame,
            Ok(Some(Err(error))) => {
                return Err(Lost::Sent(format!("the answer broke off: {}", reason(&error))));
            }
            Err(_) => {
                return Err(Lost::Sent(format!(
                    "the answer stalled for {} s",
                    IDLE_TIMEOUT.as_secs()
                )));
            }
        };
        let Ok(data) = frame.into_data() else { continue };
        len_bytes += data.len() as u64;
        if len_bytes > max_bytes {
            return Err(Lost::Sent(format!("the answer is longer than {max_bytes} bytes")));
        }
        // One frame is handed on as it is; more are joined in one buffer of the announced length.
        match first.take() {
            None if body.is_empty() => first = Some(data),
            earlier => {
                body.reserve(
                    earlier.as_ref().map_or(0, |_| expected.min(MAX_RESERVE_BYTES)).max(data.len()),
                );
                body.extend_from_slice(&earlier.unwrap_or_default());
                body.extend_from_slice(&data);
            }
        }
    }
    let body = first.unwrap_or_else(|| body.freeze());
    Ok(Answer { status: head.status, headers: head.headers, body })
}

fn lost(error: ClientError) -> Lost {
    let reason = reason(&error);
    if error.is_connect() {
        let what = format!("cannot connect: {reason}");
        if is_unfit(&error) { Lost::Unfit(what) } else { Lost::NotSent(what) }
    } else {
        Lost::Sent(format!("connection lost: {reason}"))
    }
}

/// No later attempt can end otherwise.
fn is_unfit(error: &(dyn Error + 'static)) -> bool {
    let mut cause = Some(error);
    while let Some(here) = cause {
        if tls_error(here).is_some() || here.to_string().contains("Name or service not known") {
            return true;
        }
        cause = here.source();
    }
    false
}

/// The innermost cause: the outer ones only name the layers it passed.
pub(crate) fn reason(error: &(dyn Error + 'static)) -> String {
    let mut cause = error;
    let mut of_tls = tls_error(cause);
    while let Some(inner) = cause.source() {
        cause = inner;
        of_tls = of_tls.or_else(|| tls_error(cause));
    }
    match of_tls {
        Some(rustls::Error::InvalidMessage(_)) => {
            format!(
                "{cause}: what answers there does not speak TLS; the endpoint of a plain port begins with http://"
            )
        }
        _ => cause.to_string(),
    }
}

/// A TLS error inside an I/O error, or inside several nested ones.
fn tls_error<'a>(error: &'a (dyn Error + 'static)) -> Option<&'a rustls::Error> {
    let mut error = error;
    while let Some(inner) = error.downcast_ref::<std::io::Error>().and_then(std::io::Error::get_ref)
    {
        error = inner;
    }
    error.downcast_ref()
}

/// Requests at once; the rest wait. Throughput to S3 peaks well below this.
const MAX_IN_FLIGHT: usize = 128;
const CONNECT_TIMEOUT: Duration = Duration::from_secs(5);
/// Without a byte for this long in either direction, a connection is dead.
const IDLE_TIMEOUT: Duration = Duration::from_secs(30);
const KEEPALIVE: Duration = Duration::from_secs(15);
/// Shorter than servers keep idle connections: a mutation sent into a connection that
/// the server is just closing ends in `Unknown`, which costs more than a new connection.
const POOL_IDLE: Duration = Duration::from_secs(4);
/// Limit of the memory that is reserved because of a Content-Length alone.
const MAX_RESERVE_BYTES: usize = 64 << 20;
