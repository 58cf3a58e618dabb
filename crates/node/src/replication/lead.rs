//! The part of the leader: it takes the head of the bucket and serves clients, until it is not the
//! leader any more.

use super::Host;
use crate::buckets::head::{Candidate, Continues, HeadError, HeadLease, TakeOver};
use crate::buckets::rate_limit::RateLimits;
use crate::recover::{Buckets, Parts};
use crate::replica::Part;
use crate::{Node, OpenError, Run};
use ebb_core::extent::Unforced;
use ebb_model::*;
use ebb_ports::{Bucket, CountedBucket};
use futures_util::future::{Either, select};
use std::cell::RefCell;
use std::pin::pin;
use std::rc::Rc;
use std::time::Duration;

const RETRY_INTERVAL: Duration = Duration::from_secs(1);

impl Host {
    /// Waits until this node leads, serves, and ends with the lead.
    pub(super) async fn lead_once(self: &Rc<Self>) {
        loop {
            let changes = self.quorum().changes();
            if matches!(self.quorum().part(), Part::Leads { .. }) {
                break;
            }
            changes.await;
        }
        self.wait_settled().await;
        self.quorum().wait_performed().await;
        match select(pin!(self.lead_patiently()), pin!(self.wait_lost())).await {
            Either::Left((Ok(node), _)) => self.serves_by(node),
            Either::Left((Err(error), _)) => {
                return self.fail(format!("it cannot serve its volume: {error}"));
            }
            Either::Right(((), _)) => {}
        }
        self.wait_lost().await;
        self.fail("another node leads now".into());
    }

    /// A bucket that does not answer is asked until it does: another leader could do no more.
    async fn lead_patiently(self: &Rc<Self>) -> Result<Rc<Node>, OpenError> {
        loop {
            match self.lead().await {
                Err(OpenError::Head(error @ HeadError::Store { .. })) => {
                    tracing::warn!(%error, "the volume cannot be served before its bucket answers");
                    self.ports.clock.sleep(RETRY_INTERVAL).await;
                }
                led => return led,
            }
        }
    }

    async fn wait_lost(&self) {
        loop {
            let changes = self.quorum().changes();
            if matches!(self.quorum().part(), Part::Lost { .. }) {
                return;
            }
            changes.await;
        }
    }

    /// Makes a node that serves from this replica.
    async fn lead(self: &Rc<Self>) -> Result<Rc<Node>, OpenError> {
        let begun = self.begun.take();
        if let Some(node) = begun {
            self.say_leader(&node).await?;
            return Ok(node);
        }
        let (ports, options) = (&self.ports, &self.options);
        let asked: Rc<RefCell<Tallies>> = Rc::default();
        let (down, up) = (options.download_bytes_per_sec, options.upload_bytes_per_sec);
        let rate_limits = Rc::new(RateLimits::new(&ports.clock, down, up));
        let Some(bucket) = self.bucket.clone() else {
            let buckets = Buckets::of(None, None, Vec::new(), asked, rate_limits);
            return self.build(buckets, None).await;
        };
        let root: Rc<dyn Bucket> =
            Rc::new(CountedBucket::new(bucket, ports.clock.clone(), asked.clone()));
        let candidate = Candidate {
            node: self.head,
            owner: options.owner.clone(),
            address: options.address.clone(),
            term: options.head_term,
            patience: options.bucket_timeout,
            members: Vec::new(),
            rearrange: false,
            restores: None,
            continues: Continues::State(self.serves.incarnation),
        };
        let head_lease =
            HeadLease::acquire(root.clone(), ports.clone(), candidate, TakeOver::IfAbandoned)
                .await?;
        let head_lease = Rc::new(head_lease);
        if head_lease.incarnation() != self.serves.incarnation {
            let what = "its volume was taken over by a node that is not one of its own".into();
            return Err(OpenError::Replica { what });
        }
        let held = head_lease.clone();
        let buckets =
            Buckets::of(Some(root), Some(head_lease.clone()), Vec::new(), asked, rate_limits);
        match select(pin!(self.build(buckets, Some(head_lease))), pin!(held.keep())).await {
            Either::Left((node, _)) => node,
            Either::Right((never, _)) => match never {},
        }
    }

    async fn build(
        self: &Rc<Self>,
        buckets: Buckets,
        head_lease: Option<Rc<HeadLease>>,
    ) -> Result<Rc<Node>, OpenError> {
        let run = Run {
            cluster: self.serves.cluster,
            incarnation: self.serves.incarnation,
            id: self.ports.entropy.next_u64(),
            recovered: self.replica.written(),
        };
        let parts = Parts {
            replica: self.replica.clone(),
            store: self.store.clone(),
            run,
            unforced: match Planted::UnforcedNotKnown.is_on() {
                true => Unforced::default(),
                false => self.replica.view().nodes().unforced().clone(),
            },
            snapshot_at: self.replica.written_position(),
            host: Some(Rc::downgrade(self)),
        };
        let (ports, options) = (self.ports.clone(), self.options.clone());
        let node = Node::build(ports, options, buckets, head_lease, parts).await?;
        self.say_leader(&node).await?;
        node.begin_to_lead().await?;
        Ok(node)
    }

    async fn say_leader(&self, node: &Node) -> Result<(), RpcError> {
        let (own, address) = (self.origin.node, &self.host_options.address);
        if node.replica.view().nodes().address(own) != Some(address) {
            let serves = NodesCommand::Serves { node: own, address: address.clone() };
            node.commit(Command::Nodes(serves)).await?;
        }
        node.commit(Command::Nodes(NodesCommand::Leads { node: own })).await?;
        Ok(())
    }

    /// Serves clients by this node from here on.
    fn serves_by(self: &Rc<Self>, node: Rc<Node>) {
        let (host, failing) = (self.clone(), node.clone());
        self.ports.spawn.spawn(Box::pin(async move {
            let error = failing.failure().await;
            host.fail(error.to_string());
        }));
        self.node.replace(Some(node));
        let host = self.clone();
        self.ports.spawn.spawn(Box::pin(async move { host.promote_for_ever().await }));
    }
}
