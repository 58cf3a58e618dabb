//! Pages of listings, brought into the port's order.

use ebb_ports::{ListEntry, ListPage, ListRequest};

/// The first requested entries of a store's reply. Stores return prefixes after or between objects,
/// repeat the key `after`, and some count only objects against the limit.
pub(crate) fn page(mut entries: Vec<ListEntry>, more: bool, request: &ListRequest) -> ListPage {
    let after = request.after.as_deref();
    entries.retain(|entry| {
        entry.key().starts_with(&request.prefix) && after.is_none_or(|after| entry.key() > after)
    });
    entries.sort_by(|a, b| a.key().cmp(b.key()));
    entries.dedup_by(|a, b| a.key() == b.key());
    let limit = request.limit.clamp(1, MAX_PAGE);
    let cut = entries.len() > limit;
    entries.truncate(limit);
    ListPage { entries, more: more || cut }
}

/// The port's limit.
pub(crate) const MAX_PAGE: usize = 1000;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_page_is_in_order_and_within_its_limit() {
        let prefix = |key: &str| ListEntry::Prefix { key: key.into() };
        let request = ListRequest {
            prefix: "a".into(),
            by_directory: true,
            after: Some("a1".into()),
            limit: 2,
        };
        let given = vec![
            prefix("a9/"),
            prefix("a3/"),
            prefix("a1"),
            prefix("b/"),
            prefix("a3/"),
            prefix("a2/"),
        ];
        let page = page(given, false, &request);
        assert_eq!(page, ListPage { entries: vec![prefix("a2/"), prefix("a3/")], more: true });
    }
}
