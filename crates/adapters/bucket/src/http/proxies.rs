//! The way to a server: straight, or through the proxy that the environment names for it.

use super::credentials::{Environment, is_agent, variable};
use hyper::Uri;
use hyper::header::HeaderValue;
use hyper::rt::{Read, ReadBufCursor, Write};
use hyper_rustls::{HttpsConnector, MaybeHttpsStream};
use hyper_util::client::legacy::connect::proxy::Tunnel;
use hyper_util::client::legacy::connect::{Connected, Connection, HttpConnector};
use hyper_util::client::proxy::matcher::{Intercept, Matcher};
use hyper_util::rt::TokioIo;
use std::error::Error;
use std::future::Future;
use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use tokio::net::TcpStream;
use tower_service::Service;

/// Which proxy is for which server.
#[derive(Clone)]
pub(crate) struct Proxies(Arc<Matcher>);

impl Proxies {
    /// Lower-case names have precedence over upper-case ones, as in curl. An error names the
    /// variable that does not name a proxy.
    pub fn named(environment: &Environment) -> Result<Proxies, String> {
        let named = |name: &str| {
            let upper = name.to_uppercase();
            let found = [name, &upper]
                .into_iter()
                .find_map(|name| Some((name.to_owned(), variable(environment, name)?)));
            let Some((name, value)) = found else { return Ok(String::new()) };
            match is_proxy(&value) {
                true => Ok(value),
                false => Err(format!("{name} names no proxy: http[s]://[USER:PASSWORD@]HOST:PORT")),
            }
        };
        let no = variable(environment, "no_proxy").or_else(|| variable(environment, "NO_PROXY"));
        let matcher = Matcher::builder()
            .all(named("all_proxy")?)
            .http(named("http_proxy")?)
            .https(named("https_proxy")?)
            .no(no.unwrap_or_default())
            .build();
        Ok(Proxies(Arc::new(matcher)))
    }

    /// Agents of the machine are on no other machine's way.
    fn of(&self, server: &Uri) -> Option<Intercept> {
        self.0
            .intercept(server)
            .filter(|_| !server.authority().is_some_and(|it| is_agent(it.as_str())))
    }

    /// The header by which a request of plain HTTP shows itself to its proxy.
    pub fn authorization(&self, server: &Uri) -> Option<HeaderValue> {
        if server.scheme_str() == Some("https") {
            return None;
        }
        self.of(server)?.basic_auth().cloned()
    }
}

fn is_proxy(value: &str) -> bool {
    value.parse::<Uri>().is_ok_and(|uri| {
        uri.authority().is_some() && matches!(uri.scheme_str(), None | Some("http" | "https"))
    })
}

#[derive(Clone)]
pub(crate) struct Connector {
    pub straight: HttpConnector,
    /// Proxies can be reached by TLS too.
    pub to_proxy: HttpsConnector<HttpConnector>,
    pub proxies: Proxies,
}

type Stream = MaybeHttpsStream<TokioIo<TcpStream>>;

/// A connection to a server, or to a proxy that forwards the requests.
pub(crate) struct Line {
    stream: Stream,
    is_proxied: bool,
}

impl Service<Uri> for Connector {
    type Response = Line;
    type Error = Box<dyn Error + Send + Sync>;
    type Future = Pin<Box<dyn Future<Output = Result<Line, Self::Error>> + Send>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), Self::Error>> {
        // All of these are always ready.
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, server: Uri) -> Self::Future {
        let (mut straight, mut to_proxy) = (self.straight.clone(), self.to_proxy.clone());
        let proxy = self.proxies.of(&server);
        Box::pin(async move {
            let Some(proxy) = proxy else {
                let stream = MaybeHttpsStream::Http(straight.call(server).await?);
                return Ok(Line { stream, is_proxied: false });
            };
            let through = |error: Box<dyn Error + Send + Sync>| {
                let at = proxy.uri().authority().map_or("", |authority| authority.as_str());
                format!("proxy {at}: {}", super::transport::reason(&*error))
            };
            if server.scheme_str() != Some("https") {
                let stream = to_proxy.call(proxy.uri().clone()).await.map_err(through)?;
                return Ok(Line { stream, is_proxied: true });
            }
            let mut tunnel = Tunnel::new(proxy.uri().clone(), to_proxy);
            if let Some(authorization) = proxy.basic_auth() {
                tunnel = tunnel.with_auth(authorization.clone());
            }
            let stream = tunnel.call(server).await.map_err(|error| through(Box::new(error)))?;
            Ok(Line { stream, is_proxied: false })
        })
    }
}

impl Connection for Line {
    fn connected(&self) -> Connected {
        self.stream.connected().proxy(self.is_proxied)
    }
}

impl Read for Line {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: ReadBufCursor<'_>,
    ) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_read(context, buffer)
    }
}

impl Write for Line {
    fn poll_write(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.stream).poll_write(context, bytes)
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_flush(context)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(context)
    }

    fn is_write_vectored(&self) -> bool {
        self.stream.is_write_vectored()
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.stream).poll_write_vectored(context, bytes)
    }
}

#[cfg(test)]
mod tests;
