//! git: a repository of some thousand files and some hundred commits is cloned, changed, packed and
//! checked.

use super::shell;
use crate::Outcome;
use crate::rng::Rng;
use std::fmt::Write as _;
use std::fs;
use std::path::Path;

const FILES: u64 = 3_000;
const COMMITS: u64 = 150;
const CHANGES_PER_COMMIT: u64 = 60;

/// git's configuration for all commands, without this machine's.
const PLAIN: &str = r#"
export GIT_CONFIG_NOSYSTEM=1 GIT_CONFIG_GLOBAL=/dev/null GIT_TERMINAL_PROMPT=0
export GIT_AUTHOR_NAME=a GIT_AUTHOR_EMAIL=a@example.com GIT_AUTHOR_DATE="1700000000 +0000"
export GIT_COMMITTER_NAME=a GIT_COMMITTER_EMAIL=a@example.com GIT_COMMITTER_DATE="1700000000 +0000"
"#;

pub fn prepare(reference: &Path) -> Outcome<()> {
    fs::write(reference.join("history"), history())?;
    let lines = "git init -q --bare -b main repository && git -C repository fast-import --quiet < \
        history && rm history";
    shell(reference, &format!("{PLAIN}{lines}"), &[]).map(drop)
}

pub fn work(reference: &Path, dir: &Path) -> Outcome<()> {
    let lines = r#"
clean() { rm .git/index; git reset -q; test -z "$(git status --porcelain)"; }
git clone -q "file://$1/repository" work; cd work; clean
git checkout -q -b side main~40
find . -name '*7.txt' -not -path './.git/*' -exec sed -i '1s/^/side /' {} +
git commit -qam "many changed"; clean
git mv d3 moved; git rm -rq d5; git commit -qm "moved and removed"; clean
git checkout -q main; clean
git merge -q --no-edit -X theirs side || { git add -A; git commit -qm merged; }
git stash list; git worktree add -q ../tree side; git -C ../tree status --porcelain
git gc -q --prune=now; git fsck --full --strict
git clone -q --local . ../again; git -C ../again fsck --full --strict
git repack -adfq --depth=50; git fsck --full --strict; clean
git bundle create -q ../bundle --all; git bundle verify -q ../bundle
test "$(git rev-parse 'HEAD^{tree}')" = "$(git -C ../again rev-parse 'HEAD^{tree}')"
"#;
    shell(dir, &format!("{PLAIN}{lines}"), &[reference]).map(drop)
}

pub fn look_again(dir: &Path) -> Outcome<()> {
    let lines = r#"
for place in work again tree; do
    git -C $place fsck --full --strict
    test -z "$(git -C $place status --porcelain)"
    git -C $place diff --quiet HEAD
done
"#;
    shell(dir, &format!("{PLAIN}{lines}"), &[]).map(drop)
}

/// Input of `git fast-import`: the first commit adds every file, the others change some.
fn history() -> Vec<u8> {
    let (mut rng, mut stream) = (Rng(5), Vec::new());
    for commit in 0..COMMITS {
        let text = format!(
            "commit refs/heads/main\ncommitter a <a@example.com> {} +0000\ndata 2\nc\n",
            1_600_000_000 + commit * 3_600
        );
        stream.extend_from_slice(text.as_bytes());
        let changed: Vec<u64> = if commit == 0 {
            (0..FILES).collect()
        } else {
            (0..CHANGES_PER_COMMIT).map(|_| rng.below(FILES)).collect()
        };
        for file in changed {
            let content = if file % 50 == 0 {
                let len = rng.below(40_000) as usize;
                rng.bytes(len)
            } else {
                prose(&mut rng).into_bytes()
            };
            let head = format!(
                "M 100{} inline d{}/e{}/{file}.txt\ndata {}\n",
                if file % 20 == 0 { "755" } else { "644" },
                file % 7,
                file % 31,
                content.len()
            );
            stream.extend_from_slice(head.as_bytes());
            stream.extend_from_slice(&content);
            stream.push(b'\n');
        }
        stream.push(b'\n');
    }
    stream
}

/// Lines that compress into deltas.
fn prose(rng: &mut Rng) -> String {
    let mut text = String::new();
    for line in 0..rng.below(120) {
        // Writing to a string does not fail.
        writeln!(text, "{line}: {:x} {:x}", rng.below(1 << 12), rng.below(1 << 40)).ok();
    }
    text
}
