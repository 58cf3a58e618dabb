//! The checker beside a naive one, which tries all orders of small histories with random outcomes.

use crate::execution::{Execution, Rng, Size};
use ebb_linearize::{
    Answer, Budget, Data, History, InodeId, Op, Operation, Outcome, State, Verdict, check,
};
use proptest::prelude::*;

/// Whether the operations that are left can be put in an order that begins in `state`.
fn has_order(left: &[(usize, &Operation)], state: &State) -> bool {
    let first_return =
        left.iter().filter_map(|(_, operation)| operation.answer()).map(Answer::at_ns).min();
    let Some(first_return) = first_return else { return true };
    (0..left.len()).any(|position| {
        let (index, operation) = left[position];
        let mut rest = left.to_vec();
        rest.remove(position);
        let is_possible = operation.call_ns() <= first_return;
        is_possible
            && operation.outcome().is_some_and(|outcome| {
                state
                    .accept(operation.owner(), operation.op(), outcome, InodeId::placeholder(index))
                    .is_some_and(|next| has_order(&rest, &next))
            })
    })
}

/// Replaces the outcome of one operation by that of another one of the same kind.
fn confuse(history: &History, rng: &mut Rng) -> History {
    let mut operations = history.operations().to_vec();
    for _ in 0..=rng.below(2) {
        let position = rng.below(operations.len() as u64) as usize;
        let operation = &operations[position];
        let outcomes: Vec<Outcome> = operations
            .iter()
            .filter(|other| {
                std::mem::discriminant(other.op()) == std::mem::discriminant(operation.op())
                    && !matches!(other.op(), Op::Create { .. } | Op::Mkdir { .. })
            })
            .filter_map(|other| other.outcome().cloned())
            .chain(
                matches!(operation.op(), Op::Read { .. }).then(|| Outcome::Data(Data::default())),
            )
            .collect();
        if outcomes.is_empty() {
            continue;
        }
        let answer = operation
            .answer()
            .map(|answer| Answer::new(answer.at_ns(), rng.pick(&outcomes).clone()));
        operations[position] =
            Operation::new(operation.owner(), operation.call_ns(), operation.op().clone(), answer);
    }
    History::new(operations)
}

/// A stat by name is one moment for the naive checker and two for the other one.
fn has_stat(history: &History) -> bool {
    history.operations().iter().any(|operation| matches!(operation.op(), Op::Stat { .. }))
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(1000))]

    #[test]
    fn checker_agrees_with_all_orders(
        seed: u64,
        threads in 2_u32..5,
        operations in 2_usize..14,
        names in 1_u64..3,
    ) {
        let size = Size { threads, operations, names, unanswered: 0 };
        let history = Execution::run(seed, size);
        let history = confuse(&history, &mut Rng(seed ^ 1));
        let all: Vec<(usize, &Operation)> = history.operations().iter().enumerate().collect();
        let is_ordered = has_order(&all, &State::default());
        let verdict = check(&history, Budget::default());
        if is_ordered {
            prop_assert_eq!(verdict, Verdict::Linearizable);
        } else if let Verdict::Violation(violation) = verdict {
            // The operations before the return alone have no order either.
            let end = history.operations()[violation.returned()].answer().unwrap().at_ns();
            let prefix: Vec<(usize, &Operation)> =
                all.iter().copied().filter(|(_, operation)| operation.call_ns() <= end).collect();
            prop_assert!(!has_order(&prefix, &State::default()));
            prop_assert!(!violation.core().is_empty());
        } else {
            prop_assert!(has_stat(&history), "{:?}", verdict);
        }
    }
}
