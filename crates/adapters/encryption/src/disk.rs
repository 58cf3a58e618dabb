//! A disk with encrypted file contents. Names, lengths and holes are not encrypted.
//!
//! Law: a file has at most one [`EncryptedFile`], whose latch serialises changes. The latch of a
//! name is held while a file is opened, renamed or removed under it.

use crate::file::{EncryptedFile, OVERHEAD_BYTES};
use crate::key::DataKey;
use crate::xts::Xts;
use crate::{KEY_DRAFT, KEY_FILE};
use ebb_ports::{Disk, DiskError, DiskFile, DiskSpace, Entropy, OpenMode, PortFuture};
use futures_util::lock::Mutex;
use std::cell::RefCell;
use std::collections::BTreeMap;
use std::rc::{Rc, Weak};

pub struct EncryptedDisk {
    inner: Rc<dyn Disk>,
    xts: Rc<Xts>,
    entropy: Rc<dyn Entropy>,
    names: RefCell<BTreeMap<String, Name>>,
}

/// The open file of a name, if there is one, behind the latch of the name.
type Name = Rc<Mutex<Weak<EncryptedFile>>>;

/// Entries of closed files are removed when the count of names is a power of two from here on.
const LEAST_NAMES: usize = 1024;

impl EncryptedDisk {
    pub(crate) fn new(
        inner: Rc<dyn Disk>,
        key: &DataKey,
        entropy: Rc<dyn Entropy>,
    ) -> EncryptedDisk {
        EncryptedDisk { inner, xts: Rc::new(Xts::new(key)), entropy, names: RefCell::default() }
    }

    fn name(&self, path: &str) -> Name {
        let mut names = self.names.borrow_mut();
        if names.len() >= LEAST_NAMES && names.len().is_power_of_two() {
            names.retain(|_, name| {
                Rc::strong_count(name) > 1
                    || name.try_lock().is_none_or(|file| file.strong_count() > 0)
            });
        }
        names.entry(path.to_owned()).or_default().clone()
    }

    async fn open_file(&self, path: &str, mode: OpenMode) -> Result<Rc<dyn DiskFile>, DiskError> {
        let name = self.name(path);
        let mut named = name.lock().await;
        if let Some(open) = named.upgrade().filter(|_| mode != OpenMode::CreateNew) {
            return Ok(open);
        }
        let inner = self.inner.open(path, mode).await?;
        let file = Rc::new(
            EncryptedFile::open(inner, self.xts.clone(), self.entropy.clone(), path).await?,
        );
        *named = Rc::downgrade(&file);
        Ok(file)
    }

    async fn rename_file(&self, from: &str, to: &str) -> Result<(), DiskError> {
        if from == to {
            return self.inner.rename(from, to).await;
        }
        let (first, second) = (self.name(from.min(to)), self.name(from.max(to)));
        let (mut first, mut second) = (first.lock().await, second.lock().await);
        self.inner.rename(from, to).await?;
        let (old, new) =
            if from < to { (&mut first, &mut second) } else { (&mut second, &mut first) };
        **new = std::mem::take(&mut **old);
        Ok(())
    }

    async fn remove_file(&self, path: &str) -> Result<(), DiskError> {
        let name = self.name(path);
        let mut named = name.lock().await;
        self.inner.remove(path).await?;
        *named = Weak::new();
        Ok(())
    }
}

impl Disk for EncryptedDisk {
    fn open(
        &self,
        path: &str,
        mode: OpenMode,
    ) -> PortFuture<'_, Result<Rc<dyn DiskFile>, DiskError>> {
        let path = path.to_owned();
        Box::pin(async move { self.open_file(&path, mode).await })
    }

    fn rename(&self, from: &str, to: &str) -> PortFuture<'_, Result<(), DiskError>> {
        let (from, to) = (from.to_owned(), to.to_owned());
        Box::pin(async move { self.rename_file(&from, &to).await })
    }

    fn remove(&self, path: &str) -> PortFuture<'_, Result<(), DiskError>> {
        let path = path.to_owned();
        Box::pin(async move { self.remove_file(&path).await })
    }

    fn create_dir(&self, path: &str) -> PortFuture<'_, Result<(), DiskError>> {
        self.inner.create_dir(path)
    }

    fn list(&self, path: &str) -> PortFuture<'_, Result<Vec<String>, DiskError>> {
        let is_root = path.is_empty();
        let listed = self.inner.list(path);
        Box::pin(async move {
            let mut names = listed.await?;
            names.retain(|name| !is_root || ![KEY_FILE, KEY_DRAFT].contains(&name.as_str()));
            Ok(names)
        })
    }

    fn sync_dir(&self, path: &str) -> PortFuture<'_, Result<(), DiskError>> {
        self.inner.sync_dir(path)
    }

    fn space(&self) -> PortFuture<'_, Result<DiskSpace, DiskError>> {
        self.inner.space()
    }

    fn longest_file(&self) -> PortFuture<'_, Result<u64, DiskError>> {
        Box::pin(async { Ok(self.inner.longest_file().await?.saturating_sub(OVERHEAD_BYTES)) })
    }

    fn lock(&self) -> Result<(), DiskError> {
        self.inner.lock()
    }

    fn boot_id(&self) -> u128 {
        self.inner.boot_id()
    }
}
