//! The file `replica`: the ids of a data directory in a replicated volume.

use crate::identity::IdentityError;
use crate::random_u128;
use ebb_consensus::{DirectoryId, ReplicaId};
use ebb_format::replica::{self, Stage};
use ebb_model::NodeId;
use ebb_ports::{Disk, DiskError, Entropy, OpenMode};

const PATH: &str = "replica";
const DRAFT: &str = "replica.new";
const MAX_BYTES: usize = 64 << 10;

#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct ReplicaIdentity {
    pub node: NodeId,
    pub directory: DirectoryId,
    pub stage: Stage,
}

impl ReplicaIdentity {
    pub fn draw(entropy: &dyn Entropy) -> ReplicaIdentity {
        // The largest numbers are not ids.
        let node = NodeId((entropy.next_u64() >> 2).max(1));
        let directory = DirectoryId(random_u128(entropy));
        ReplicaIdentity { node, directory, stage: Stage::Drawn }
    }

    pub fn joined(&self) -> Option<ReplicaId> {
        match self.stage {
            Stage::Joined { replica } => Some(ReplicaId(replica)),
            Stage::Drawn | Stage::Begun => None,
        }
    }

    pub async fn load(disk: &dyn Disk) -> Result<Option<ReplicaIdentity>, IdentityError> {
        let file = match disk.open(PATH, OpenMode::Existing).await {
            Ok(file) => file,
            Err(DiskError::NotFound { .. }) => return Ok(None),
            Err(error) => return Err(error.into()),
        };
        let found = replica::decode(&file.read_at(0, MAX_BYTES).await?)?;
        let replica::Replica { node, directory, stage } = found;
        Ok(Some(ReplicaIdentity { node, directory: DirectoryId(directory), stage }))
    }

    /// Replaces the file; the old one stays until the new one is forced.
    pub async fn store(&self, disk: &dyn Disk) -> Result<(), IdentityError> {
        let ReplicaIdentity { node, directory, stage } = self.clone();
        let content = replica::encode(&replica::Replica { node, directory: directory.0, stage });
        let file = disk.open(DRAFT, OpenMode::Create).await?;
        file.set_len(0).await?;
        file.write_at(0, content).await?;
        file.sync_data().await?;
        disk.rename(DRAFT, PATH).await?;
        disk.sync_dir("").await?;
        Ok(())
    }
}
