//! The log over a disk that forgets: what was promised is there, whatever happened.

mod crash;
mod damage;
mod disk;
mod full;
mod proof;
mod property;
mod world;
