//! Leases: the kernel of a mount answers from its cache while other mounts are attached, and never
//! with outdated attributes or names.

use super::*;
use ebb_sim::oracle::{Op, Outcome};
use ebb_sim::volume::KernelCache;
use futures_util::future::{Either, join, select};

/// A mount with a kernel that caches under leases.
struct Mount {
    process: Process,
    cache: KernelCache,
}

impl Mount {
    async fn new(world: &World, machine: &str) -> Mount {
        let (process, client) = attach(world, machine).await;
        Mount::of(world, process, &client)
    }

    fn of(world: &World, process: Process, client: &Client) -> Mount {
        let cache = KernelCache::new(&process, client, world.rng(process.name()));
        Mount { process, cache }
    }

    /// The answer to a program of this mount.
    async fn ask(&self, op: Op) -> Outcome {
        let ask = self.cache.ask();
        self.process.call(async move { ask(op).await }).await.expect("the client lives")
    }

    async fn mode(&self, ino: Ino) -> u16 {
        match self.ask(Op::GetAttr { ino }).await {
            Outcome::Attr(attr) => attr.mode & 0o777,
            other => panic!("{other:?}"),
        }
    }

    async fn finds(&self, parent: Ino, file: usize) -> bool {
        match self.ask(Op::Lookup { parent, name: name(file) }).await {
            Outcome::Attr(_) => true,
            Outcome::Failed(FsError::NotFound) => false,
            other => panic!("{other:?}"),
        }
    }

    async fn set_mode(&self, ino: Ino, mode: u16) {
        let set = SetAttr { mode: Some(mode), ..SetAttr::default() };
        let done = self.ask(Op::Mutate(ClientMutation::SetAttr { ino, set })).await;
        assert!(matches!(done, Outcome::Attr(_)), "{done:?}");
    }

    async fn create(&self, parent: Ino, file: usize) -> Ino {
        let make = ClientMutation::Make {
            parent,
            name: name(file),
            mode: NewMode { mode: 0o600, umask: 0 },
            what: Make::Regular,
            open: false,
        };
        match self.ask(Op::Mutate(make)).await {
            Outcome::Attr(attr) => attr.ino,
            other => panic!("{other:?}"),
        }
    }

    /// Asks until the kernel answers for itself.
    async fn caches(&self, world: &World, op: Op) {
        for _ in 0..100 {
            let hits = self.cache.hits();
            self.ask(op.clone()).await;
            if self.cache.hits() > hits {
                return;
            }
            world.sleep(Duration::from_millis(50)).await;
        }
        panic!("{op:?} is not cached");
    }

    /// The mount is cut off from the node, and has dropped its caches.
    async fn answers_nothing(&self, world: &World, op: Op) {
        let ask = self.cache.ask();
        let asking = Box::pin(self.process.call(async move { ask(op).await }));
        let answer = select(asking, world.sleep(Duration::from_secs(5))).await;
        if let Either::Left((answer, _)) = answer {
            panic!("answered without the node: {answer:?}");
        }
    }
}

/// A node with two mounts and a file of mode 600.
async fn two_mounts(world: &World) -> (Process, Mount, Mount, Ino) {
    let server = serve(world).await;
    let left = Mount::new(world, "left").await;
    let right = Mount::new(world, "right").await;
    let ino = left.create(Ino::ROOT, 0).await;
    (server, left, right, ino)
}

/// Without a change in between the second look costs no request, of names that are absent too.
#[test]
fn a_kernel_answers_for_itself_while_others_are_attached() {
    let world = World::new(1);
    run(1, &world, async {
        let (_server, left, right, ino) = two_mounts(&world).await;
        for mount in [&left, &right] {
            mount.caches(&world, Op::GetAttr { ino }).await;
            mount.caches(&world, Op::Lookup { parent: Ino::ROOT, name: name(0) }).await;
            mount.caches(&world, Op::Lookup { parent: Ino::ROOT, name: name(9) }).await;
        }
    });
}

/// A cached answer is gone when a change by another mount is answered.
#[test]
fn what_changes_is_recalled_before() {
    for seed in 0..SEEDS {
        let world = World::new(seed);
        run(seed, &world, async {
            let (_server, left, right, ino) = two_mounts(&world).await;
            for round in 0..4u16 {
                right.caches(&world, Op::GetAttr { ino }).await;
                left.set_mode(ino, 0o640 + round).await;
                assert_eq!(right.mode(ino).await, 0o640 + round, "seed {seed}, round {round}");
            }
        });
    }
}

/// A name that was absent is there once another mount has been told that it has made it, and the
/// other way round.
#[test]
fn names_are_recalled() {
    for seed in 0..SEEDS {
        let world = World::new(seed);
        run(seed, &world, async {
            let (_server, left, right, _) = two_mounts(&world).await;
            right.caches(&world, Op::Lookup { parent: Ino::ROOT, name: name(1) }).await;
            left.create(Ino::ROOT, 1).await;
            assert!(right.finds(Ino::ROOT, 1).await, "seed {seed}: the name was made");
            right.caches(&world, Op::Lookup { parent: Ino::ROOT, name: name(1) }).await;
            let unlink = ClientMutation::Unlink { parent: Ino::ROOT, name: name(1) };
            assert_eq!(left.ask(Op::Mutate(unlink)).await, Outcome::Done);
            assert!(!right.finds(Ino::ROOT, 1).await, "seed {seed}: the name was removed");
        });
    }
}

/// A mount renames a name that it has cached, and another one takes the new name away. Expectation:
/// the first does not find it any more.
#[test]
fn a_renamed_name_is_recalled_too() {
    for seed in 0..SEEDS {
        let world = World::new(seed);
        run(seed, &world, async {
            let (_server, left, right, ino) = two_mounts(&world).await;
            right.caches(&world, Op::Lookup { parent: Ino::ROOT, name: name(0) }).await;
            let rename = |from: usize, to: usize| {
                Op::Mutate(ClientMutation::Rename {
                    from: Ino::ROOT,
                    name: name(from),
                    to: Ino::ROOT,
                    new_name: name(to),
                    mode: RenameMode::Replace,
                })
            };
            assert_eq!(right.ask(rename(0, 1)).await, Outcome::Done);
            // A stat after the rename.
            right.mode(ino).await;
            assert_eq!(left.ask(rename(1, 2)).await, Outcome::Done);
            right.mode(ino).await;
            assert!(!right.finds(Ino::ROOT, 1).await, "seed {seed}");
        });
    }
}

/// Another mount looks at an inode at any moment while it is being changed. Expectation: it does
/// not cache outdated attributes.
#[test]
fn nothing_is_leased_that_is_about_to_change() {
    for seed in 0..SEEDS {
        let world = World::new(seed);
        run(seed, &world, async {
            let (_server, left, right, _) = two_mounts(&world).await;
            for round in 0..20 {
                // Nobody has a lease of it yet.
                let ino = left.create(Ino::ROOT, 1 + round).await;
                let changing = async {
                    world.sleep(Duration::from_micros(300)).await;
                    left.set_mode(ino, 0o644).await;
                };
                let looking = async {
                    world.sleep(Duration::from_micros(300 + 50 * round as u64)).await;
                    right.mode(ino).await;
                };
                join(changing, looking).await;
                assert_eq!(right.mode(ino).await, 0o644, "seed {seed}, round {round}");
            }
        });
    }
}

/// A mount changes an inode that it has cached. Another one, nearer to the node, sees the change
/// before the answer has reached the first. Expectation: by then no program of the first mount is
/// told the old state.
#[test]
fn a_change_is_shown_when_its_author_has_dropped_the_old() {
    for seed in 0..SEEDS {
        let world = World::new(seed);
        run(seed, &world, async {
            let (server, node) = serve_one(&world, options()).await;
            let near = rig::attach_embedded(&server, &node)
                .await
                .expect("the process lives")
                .expect("the node serves");
            let author = Mount::new(&world, "author").await;
            let (ino, _) = make(&near, 0).await;
            author.caches(&world, Op::GetAttr { ino }).await;
            let set = SetAttr { mode: Some(0o644), ..SetAttr::default() };
            let ask = author.cache.ask();
            let changing = author.process.call(async move {
                ask(Op::Mutate(ClientMutation::SetAttr { ino, set })).await;
            });
            let seeing = async {
                while near.getattr(ino).await.unwrap().mode & 0o777 != 0o644 {
                    world.sleep(Duration::from_micros(200)).await;
                }
                assert_eq!(author.mode(ino).await, 0o644, "seed {seed}");
            };
            join(changing, seeing).await;
        });
    }
}

/// A mount with leases is cut off. Expectation: others wait no longer than the lease term, and by
/// then its kernel has dropped its caches.
#[test]
fn leases_end_with_their_term() {
    for seed in 0..SEEDS {
        let world = World::new(seed);
        run(seed, &world, async {
            let (_server, left, right, ino) = two_mounts(&world).await;
            right.caches(&world, Op::GetAttr { ino }).await;
            world.net().partition("right", "server");
            let began = world.now();
            left.set_mode(ino, 0o644).await;
            let waited = world.now() - began;
            assert!(waited < Duration::from_millis(2500), "seed {seed}: {waited:?}");
            right.answers_nothing(&world, Op::GetAttr { ino }).await;
            world.net().heal();
            assert_eq!(right.mode(ino).await, 0o644, "seed {seed}");
        });
    }
}

/// A mount that has leases dies with its machine. Others wait once, for the lease term.
#[test]
fn the_dead_are_waited_for_as_long_as_their_leases_last() {
    let world = World::new(1);
    run(1, &world, async {
        let (_server, left, right, ino) = two_mounts(&world).await;
        right.caches(&world, Op::GetAttr { ino }).await;
        right.caches(&world, Op::Lookup { parent: Ino::ROOT, name: name(7) }).await;
        right.process.kill();
        let began = world.now();
        left.set_mode(ino, 0o644).await;
        left.create(Ino::ROOT, 7).await;
        let waited = world.now() - began;
        assert!(waited < Duration::from_millis(2500), "{waited:?}");
    });
}

/// The node starts anew while a mount that has leases cannot reach it. Expectation: no change is
/// acknowledged before its leases have ended.
#[test]
fn a_node_that_starts_anew_waits_for_leases_of_before() {
    for seed in 0..SEEDS {
        let world = World::new(seed);
        run(seed, &world, async {
            let (server, left, right, ino) = two_mounts(&world).await;
            right.caches(&world, Op::GetAttr { ino }).await;
            world.net().partition("right", "server");
            server.kill();
            let _server = serve(&world).await;
            left.set_mode(ino, 0o644).await;
            right.answers_nothing(&world, Op::GetAttr { ino }).await;
            world.net().heal();
            assert_eq!(right.mode(ino).await, 0o644, "seed {seed}");
        });
    }
}

/// Both change names in one directory, again and again. Each needs the other to give leases back
/// while it waits itself.
#[test]
fn two_mounts_that_change_one_directory_go_on() {
    for seed in 0..SEEDS {
        let world = World::new(seed);
        run(seed, &world, async {
            let (_server, left, right, _) = two_mounts(&world).await;
            let began = world.now();
            let busy = |mount: &Mount, from: usize| {
                let ask = mount.cache.ask();
                mount.process.call(async move {
                    for file in from..from + 30 {
                        let lookup = Op::Lookup { parent: Ino::ROOT, name: name(file) };
                        ask(lookup.clone()).await;
                        let make = ClientMutation::Make {
                            parent: Ino::ROOT,
                            name: name(file),
                            mode: NewMode { mode: 0o600, umask: 0 },
                            what: Make::Regular,
                            open: false,
                        };
                        let made = ask(Op::Mutate(make)).await;
                        assert!(matches!(made, Outcome::Attr(_)), "{made:?}");
                        let found = ask(lookup).await;
                        assert!(matches!(found, Outcome::Attr(_)), "{found:?}");
                    }
                })
            };
            join(busy(&left, 100), busy(&right, 200)).await;
            let took = world.now() - began;
            assert!(took < Duration::from_secs(3), "seed {seed}: {took:?}");
            for file in (100..130).chain(200..230) {
                assert!(left.finds(Ino::ROOT, file).await && right.finds(Ino::ROOT, file).await);
            }
        });
    }
}
