//! The bucket port over S3, GCS, Azure, a directory and memory.
