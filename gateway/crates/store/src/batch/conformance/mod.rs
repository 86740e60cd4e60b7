//! What every implementation of the surface must do. Each check takes an empty store; a new implementation adds one line at
//! the end, a new check one line to the list.

mod batches;
mod desk;
mod files;
mod full;
mod invariants;
mod lines;
mod random;
mod sweeping;
mod world;

use crate::BatchStore;

macro_rules! conformance {
    ($implementation:ident, $make:expr, [$($module:ident :: $check:ident),* $(,)?]) => {
        mod $implementation {
            $(#[test]
            fn $check() {
                let (store, _keep) = $make();
                super::$module::$check(&store);
                super::invariants::hold(&store);
            })*
        }
    };
}

macro_rules! implementations {
    ($($implementation:ident: $make:expr;)*) => {$(
        conformance!($implementation, $make, [
            files::a_file_is_seen_when_it_is_finished_and_reads_as_it_was_written,
            files::a_file_may_be_written_in_pieces_of_any_length,
            files::an_unfinished_file_may_be_forgotten_and_a_finished_one_not,
            files::what_expires_may_be_said_at_the_end,
            files::files_are_listed_in_pages_both_ways,
            files::a_list_goes_on_behind_a_file_that_was_deleted_since,
            files::nobody_sees_the_files_of_another_tenant,
            files::it_is_told_how_much_there_is,
            batches::a_batch_comes_back_as_it_was_made,
            batches::a_batch_needs_an_input_of_its_own_tenant_for_this_purpose,
            batches::a_tenant_has_at_most_so_many_open_batches_though_many_are_asked_for_at_once,
            batches::a_batch_that_is_asked_for_again_is_not_made_twice,
            batches::batches_are_listed_in_pages_both_ways,
            batches::nobody_sees_the_batches_of_another_tenant,
            batches::the_job_is_one_holders_at_a_time,
            batches::an_interrupted_look_begins_anew,
            batches::a_wrong_line_fails_the_batch,
            batches::a_batch_without_lines_is_complete_at_once,
            batches::a_batch_is_completed_with_its_last_result,
            batches::a_cancelled_batch_counts_its_other_lines_as_failed,
            batches::a_batch_that_ends_while_it_is_validated_has_no_files_and_no_lines,
            batches::the_first_seal_counts,
            batches::a_batch_can_not_be_cancelled_once_it_is_complete,
            batches::a_batch_is_closed_by_its_job_with_its_own_files_or_not_at_all,
            batches::times_only_move_forward_though_the_clock_was_set_back,
            lines::lines_are_claimed_by_affinity_and_number_within_bounds,
            lines::two_holders_never_have_the_same_line,
            lines::a_released_line_is_claimed_again_and_remembers_its_tries,
            lines::a_line_with_a_result_is_never_claimed_or_stored_again,
            lines::a_lapsed_holder_loses_everything_and_can_store_nothing,
            lines::an_ended_holder_gives_everything_back,
            lines::a_holder_number_is_never_given_twice,
            lines::a_renewed_lease_keeps_what_was_claimed,
            lines::a_lease_of_a_clock_that_was_ahead_is_over_soon_after_that_was_set_back,
            lines::results_of_a_sealed_batch_come_too_late,
            lines::results_of_several_batches_are_stored_together,
            lines::the_last_result_and_a_cancellation_race_and_one_wins,
            lines::deleting_the_input_does_not_touch_a_running_batch,
            lines::absurd_token_counts_are_bounded,
            lines::results_and_unfinished_lines_are_read_in_parts,
            lines::many_threads_run_a_batch_and_each_line_has_one_result,
            sweeping::files_whose_time_is_over_go,
            sweeping::content_goes_when_no_batch_needs_it,
            sweeping::lines_and_results_go_with_the_end_of_a_batch_and_the_batch_later,
            sweeping::one_call_does_a_bounded_part,
            full::a_full_disk_leaves_nothing_half_done_and_space_heals_it,
        ]);
    )*};
}

fn sqlite_file() -> (BatchStore, tempfile::TempDir) {
    let directory = tempfile::tempdir().unwrap();
    (BatchStore::open(&directory.path().join("batches.db")).unwrap(), directory)
}

fn sqlite_memory() -> (BatchStore, ()) {
    (BatchStore::in_memory().unwrap(), ())
}

implementations! {
    file: super::sqlite_file;
    memory: super::sqlite_memory;
}
