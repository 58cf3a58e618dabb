use ebb_format::FormatError;
use ebb_format::identity::{self, Identity, Serves};
use ebb_model::{ClusterId, Incarnation};
use proptest::prelude::*;

fn sample() -> Identity {
    let serves = Serves {
        cluster: ClusterId(0xabcd << 80 | 7),
        incarnation: Incarnation(3),
        backing: "s3://bucket/prefix".into(),
        members: Vec::new(),
        endpoint: None,
    };
    Identity::of(0xfeed << 112 | 1, Some(serves))
}

pub fn golden() -> Vec<(String, Vec<u8>)> {
    let fresh = Identity { serves: None, ..sample() };
    let mut side_by_side = sample();
    side_by_side.serves.as_mut().expect("the sample serves").members =
        vec!["logs over s3://other/prefix/".into()];
    let mut reached = sample();
    reached.serves.as_mut().expect("the sample serves").endpoint =
        Some("https://s3.example.com".into());
    let mut only_read = sample();
    only_read.serves.as_mut().expect("the sample serves").incarnation = Incarnation::NONE;
    vec![
        ("only-read".into(), identity::encode(&only_read).to_vec()),
        ("reached".into(), identity::encode(&reached).to_vec()),
        ("serving".into(), identity::encode(&sample()).to_vec()),
        ("fresh".into(), identity::encode(&fresh).to_vec()),
        ("side-by-side".into(), identity::encode(&side_by_side).to_vec()),
    ]
}

pub fn meaning(bytes: &[u8]) -> Option<String> {
    Some(format!("{:?}", identity::decode(bytes).ok()?))
}

pub fn reread(bytes: &[u8]) -> Option<(String, Vec<u8>)> {
    let identity = identity::decode(bytes).ok()?;
    Some((format!("{identity:?}"), identity::encode(&identity).to_vec()))
}

proptest! {
    #[test]
    fn an_identity_is_read_as_it_was_written(node: u128, cluster: u128, incarnation: u64, backing: String, members: Vec<String>, endpoint: Option<String>, serving: bool) {
        let serves = Serves { cluster: ClusterId(cluster), incarnation: Incarnation(incarnation), backing, members, endpoint };
        let identity = Identity::of(node, serving.then_some(serves));
        prop_assert_eq!(identity::decode(&identity::encode(&identity)), Ok(identity));
    }

    /// White space can change; the decoded value cannot.
    #[test]
    fn a_flipped_bit_never_gives_another_identity(bit: prop::sample::Index) {
        let mut bytes = identity::encode(&sample()).to_vec();
        let bit = bit.index(bytes.len() * 8);
        bytes[bit / 8] ^= 1 << (bit % 8);
        if let Ok(identity) = identity::decode(&bytes) {
            prop_assert_eq!(identity, sample());
        }
    }

    #[test]
    fn any_text_is_answered(text: String) {
        prop_assert!(identity::decode(text.as_bytes()).is_err());
    }
}

/// Truncation and a later version are reported as such, with the name of the file.
#[test]
fn what_is_wrong_is_told_apart() {
    let whole = identity::encode(&sample());
    let cut = identity::decode(&whole[..30]).expect_err("it is short");
    assert!(
        matches!(cut, FormatError::Truncated { offset: 30, .. })
            && cut.to_string().starts_with("node identity"),
        "{cut}"
    );
    assert!(matches!(
        identity::decode(b"{\"format\": 9}"),
        Err(FormatError::Version { found: 9, known: 2, .. })
    ));
}
