use super::{error, nobody, open, open_as};
use crate::http::script::{Reply, answer, serve};
use crate::{BucketSettings, OpenError};

fn refused(reply: impl Fn() -> Reply + Send + 'static) -> OpenError {
    let script = serve(true, move |_| reply());
    open(&script.address, nobody(), &[]).map(drop).unwrap_err()
}

#[test]
fn opening_reports_the_fault_of_a_bucket() {
    let missing =
        refused(|| error("404 Not Found", "notFound", "The specified bucket does not exist."));
    assert!(matches!(missing, OpenError::NoBucket { .. }), "{missing}");
    let forbidden = refused(|| {
        error("403 Forbidden", "forbidden", "a@b does not have storage.objects.list access")
    });
    assert!(
        matches!(forbidden, OpenError::Forbidden { .. })
            && forbidden.to_string().contains("objects.list"),
        "{forbidden}"
    );
    for body in ["<html>hello</html>", "", "[]", r#"{"kind":"storage#bucket"}"#] {
        let page = refused(move || answer("200 OK", "", body));
        assert!(
            page.to_string().contains("does not speak the Google Cloud Storage protocol"),
            "{page}"
        );
    }
    let port = std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
    let unreachable =
        open(&format!("http://127.0.0.1:{port}"), nobody(), &[]).map(drop).unwrap_err();
    assert!(unreachable.to_string().contains("check the endpoint"), "{unreachable}");
}

#[test]
fn opening_refuses_invalid_buckets_and_endpoints() {
    let wrong = |endpoint: &str| BucketSettings { endpoint: Some(endpoint.into()), ..nobody() };
    assert!(matches!(
        open_as(wrong("storage.local"), &[]).map(drop),
        Err(OpenError::Settings { .. })
    ));
    assert!(matches!(
        open_as(wrong("https://user@storage.local"), &[]).map(drop),
        Err(OpenError::Settings { .. })
    ));
}

/// A read-only bucket is reported before the mount.
#[test]
fn a_bucket_that_cannot_be_written_is_said() {
    let script = serve(true, |request| match request.starts_with("GET") {
        true => answer("200 OK", "", "{}"),
        false => error("403 Forbidden", "forbidden", "no storage.objects.create"),
    });
    let settings = BucketSettings { endpoint: Some(script.address.clone()), ..nobody() };
    let error = open_as(settings, &[]).map(drop).unwrap_err();
    assert!(matches!(error, OpenError::Write { .. }), "{error}");
}
