//! A directory that serves as bucket, on a disk that loses power: of what was answered nothing is
//! lost, and nothing comes back that was deleted.

use super::layer::Layer;
use crate::Outcome;
use crate::finding::Finding;
use crate::rng::Rng;
use bytes::Bytes;
use ebb_bucket::BucketSettings;
use ebb_ports::{Bucket, BucketError, Condition, ListEntry, ListRequest};
use std::collections::BTreeMap;
use std::fs;
use std::path::Path;
use std::rc::Rc;

const CUTS: u64 = 12;
const CHANGES: u64 = 25;

type Objects = BTreeMap<String, Bytes>;

pub fn run(dir: &Path, rng: &mut Rng) -> Outcome<()> {
    let point = dir.join("bucket");
    fs::create_dir_all(&point)?;
    let mut layer = Layer::new(&dir.join("bucket-platter"), &point)?;
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    let mut objects = Objects::new();
    for _ in 0..CUTS {
        runtime.block_on(async {
            let bucket = open(&point).await?;
            for _ in 0..CHANGES {
                change(&*bucket, &mut objects, rng).await?;
            }
            Outcome::Ok(())
        })?;
        layer.switch_off();
        layer.take_away()?;
        layer.come_back(rng.draw())?;
        let left = runtime.block_on(async { all(&*open(&point).await?).await })?;
        for key in objects.keys().chain(left.keys()) {
            if objects.get(key) != left.get(key) {
                let (was, is) = (objects.get(key).map(Bytes::len), left.get(key).map(Bytes::len));
                return Err(Finding(format!(
                    "{key} in a directory as bucket had {was:?} bytes before a power cut and has \
                     {is:?}, or other ones"
                ))
                .into());
            }
        }
    }
    println!("a directory as bucket keeps all that was answered through {CUTS} power cuts");
    Ok(())
}

async fn open(point: &Path) -> Outcome<Rc<dyn Bucket>> {
    let url = format!("file://{}", point.display());
    Ok(ebb_bucket::open(&url, &BucketSettings::default()).await?)
}

async fn change(bucket: &dyn Bucket, objects: &mut Objects, rng: &mut Rng) -> Outcome<()> {
    let key = format!("{}{}", ["", "d/", "d/e/", "f/"][rng.below(4) as usize], rng.below(5));
    let body = Bytes::from(vec![rng.below(256) as u8; rng.below(20_000) as usize]);
    match rng.below(8) {
        0..4 => drop(bucket.put(&key, body.clone(), Condition::Always, vec![]).await?),
        4 => {
            let upload = bucket.upload_begin(&key, vec![]).await?;
            let half = body.len() / 2;
            let pieces = [body.slice(..half), body.slice(half..)];
            let mut parts = Vec::new();
            for (number, piece) in (1..).zip(pieces) {
                parts.push(bucket.upload_part(&key, &upload, number, piece).await?);
            }
            bucket.upload_complete(&key, &upload, parts, Condition::Always).await?;
        }
        5 => {
            let Some((from, body)) = objects.iter().next() else { return Ok(()) };
            let (from, body) = (from.clone(), body.clone());
            bucket.copy(&from, &key, None, Condition::Always).await?;
            objects.insert(key, body);
            return Ok(());
        }
        _ => {
            match bucket.delete(&key, None).await {
                Ok(()) | Err(BucketError::NotFound { .. }) => {}
                Err(error) => return Err(error.into()),
            }
            objects.remove(&key);
            return Ok(());
        }
    }
    objects.insert(key, body);
    Ok(())
}

async fn all(bucket: &dyn Bucket) -> Outcome<Objects> {
    let request =
        ListRequest { prefix: String::new(), after: None, by_directory: false, limit: 1000 };
    let page = bucket.list(request).await?;
    let mut objects = Objects::new();
    for entry in page.entries {
        // The layer has no extended attributes: there an empty directory is an object until its own
        // key is deleted.
        if let ListEntry::Object { key, .. } = entry
            && !key.ends_with('/')
        {
            let body = bucket.get(&key, None, None).await?.body;
            objects.insert(key, body);
        }
    }
    Ok(objects)
}
