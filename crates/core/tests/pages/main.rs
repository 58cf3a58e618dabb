//! Directory pages: names of inodes with many, and pieces of large pages: writing, reading,
//! deletion (decision 15).

mod heads;
mod left;
mod many_names;
mod volume;
mod written;
