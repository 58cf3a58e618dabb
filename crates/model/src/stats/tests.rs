use super::*;
use proptest::prelude::*;

/// Durations of every magnitude.
fn times() -> impl Strategy<Value = Vec<u64>> {
    prop::collection::vec((0u32..64, any::<u64>()).prop_map(|(shift, bits)| bits >> shift), 0..200)
}

fn of(times: &[u64]) -> Histogram {
    let mut histogram = Histogram::default();
    times.iter().for_each(|ns| histogram.record(Duration::from_nanos(*ns)));
    histogram
}

#[test]
fn buckets_follow_each_other_and_are_an_eighth_wide() {
    for bucket in 0..BUCKETS - 1 {
        let (lowest, highest) =
            (if bucket == 0 { 0 } else { bound_ns(bucket - 1) + 1 }, bound_ns(bucket));
        assert!(
            lowest <= highest && index(lowest) == bucket && index(highest) == bucket,
            "{bucket}: {lowest} to {highest}"
        );
        assert!((highest - lowest) * STEPS <= lowest.max(STEPS), "{bucket}: {lowest} to {highest}");
    }
    assert_eq!(
        (index(1 << 40), index((1 << 40) + 1), index(u64::MAX)),
        (BUCKETS - 2, BUCKETS - 1, BUCKETS - 1)
    );
}

proptest! {
    /// Compares with the sorted durations.
    #[test]
    fn quantiles_are_right_to_an_eighth(mut times in times(), part in 0.0..=1.0f64) {
        let histogram = of(&times);
        times.sort_unstable();
        prop_assert_eq!(histogram.count(), times.len() as u64);
        prop_assert_eq!(histogram.most(), Duration::from_nanos(times.last().copied().unwrap_or(0)));
        let found = histogram.quantile(part).as_nanos() as u64;
        match times.get(((times.len() as f64 * part).ceil() as usize).saturating_sub(1)) {
            None => prop_assert_eq!(found, 0),
            Some(exact) if *exact <= 1 << 40 => prop_assert!(*exact <= found && found - exact <= (exact / STEPS).max(1), "{} for {}", found, exact),
            Some(exact) => prop_assert!(*exact <= found),
        }
        for power in [0, 1, 10, 20, 40] {
            prop_assert_eq!(histogram.within(power), times.iter().filter(|ns| **ns <= 1 << power).count() as u64);
        }
    }

    #[test]
    fn merge_equals_counting_together(one in times(), other in times()) {
        let mut merged = of(&one);
        merged.merge(&of(&other));
        prop_assert_eq!(merged, of(&[one, other].concat()));
    }

    #[test]
    fn since_counts_only_later_values(before in times(), since in times()) {
        let all = of(&[before.clone(), since.clone()].concat());
        let (found, exact) = (all.since(&of(&before)), of(&since));
        prop_assert_eq!((&found.buckets, found.count()), (&exact.buckets, exact.count()));
        prop_assert!(found.most() >= exact.most());
        prop_assert!(found.quantile(0.5) >= exact.quantile(0.5));
    }

    #[test]
    fn a_histogram_travels(times in times()) {
        let histogram = of(&times);
        let back = Histogram::try_from(Sparse::from(histogram.clone())).unwrap();
        prop_assert_eq!(back, histogram);
    }
}

#[test]
fn a_histogram_with_a_bucket_too_many_is_refused() {
    let sparse = Sparse { sum_ns: 1, most_ns: 1, buckets: vec![(BUCKETS as u16, 1)] };
    assert_eq!(
        Histogram::try_from(sparse).unwrap_err().to_string(),
        format!("a histogram has no bucket {BUCKETS}")
    );
}

#[test]
fn kinds_without_anything_new_are_left_out_of_a_difference() {
    let mut tallies = Tallies::default();
    tallies.record("read", Duration::from_millis(1), false, 10);
    tallies.record("write", Duration::from_millis(1), true, 1);
    let before = tallies.counted();
    tallies.record("read", Duration::from_millis(3), true, 5);
    tallies.record("sync", Duration::from_millis(2), false, 0);
    let since = counted_since(&tallies.counted(), &before);
    let told: Vec<_> = since
        .iter()
        .map(|c| (c.name.as_str(), c.tally.time.count(), c.tally.errors, c.tally.bytes))
        .collect();
    assert_eq!(told, [("read", 1, 1, 5), ("sync", 1, 0, 0)]);
}

#[test]
fn a_log_has_room_for_ten_lines_in_ten_seconds() {
    let mut budget = LogBudget::default();
    let mut take = |secs| budget.take(Duration::from_secs(secs));
    let burst: Vec<_> = (0..12).map(|_| take(100)).collect();
    assert_eq!(burst[..10], [Some(0); 10]);
    assert_eq!(burst[10..], [None; 2]);
    assert_eq!((take(109), take(110), take(111)), (None, Some(3), Some(0)));
}
