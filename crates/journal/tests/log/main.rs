//! The log over a disk that forgets: after any failure all promised commands are there.

mod crash;
mod damage;
mod disk;
mod full;
mod groups;
mod proof;
mod property;
mod release_0_1_0;
mod replicated;
mod world;
