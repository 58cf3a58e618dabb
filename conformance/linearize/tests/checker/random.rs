//! Whatever the model does in any concurrent execution is accepted.

use crate::execution::{Execution, Size};
use ebb_linearize::{Budget, History, Verdict, check};
use proptest::prelude::*;

proptest! {
    #![proptest_config(ProptestConfig::with_cases(100))]

    #[test]
    fn executions_of_the_model_are_linearizable(
        seed: u64,
        threads in 1_u32..8,
        operations in 1_usize..120,
        names in 2_u64..6,
    ) {
        let size = Size { threads, operations, names, unanswered: 0 };
        let history = Execution::run(seed, size);
        prop_assert_eq!(check(&history, Budget::default()), Verdict::Linearizable);
    }

    #[test]
    fn executions_with_unanswered_operations_are_linearizable(
        seed: u64,
        threads in 2_u32..6,
        operations in 1_usize..60,
        names in 2_u64..6,
    ) {
        let size = Size { threads, operations, names, unanswered: 5 };
        let history = Execution::run(seed, size);
        let verdict = check(&history, Budget::new(200_000));
        prop_assert!(!matches!(verdict, Verdict::Violation(_)), "{:?}", verdict);
    }
}

/// Danger: a lack of budget passes for a violation or for none.
#[test]
fn check_without_budget_is_undecided() {
    let size = Size { threads: 4, operations: 50, names: 3, unanswered: 0 };
    let history = Execution::run(1, size);
    assert_eq!(check(&history, Budget::new(3)), Verdict::Undecided);
    assert_eq!(check(&History::default(), Budget::new(0)), Verdict::Linearizable);
}
