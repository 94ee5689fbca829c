"""Canaries: known defects that the harness puts back into the code under test, to check that it finds them.

Each canary is a patch that breaks one rule of docs/rules.md in a way that has occurred in real systems. The ordinary
checkers must find it with ordinary settings, and the same seed must pass without it.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from simulation.canaries import bookie, books, client, hardships, logs, repair, security, streams
from simulation.engine.patches import Patch


@dataclass(frozen=True, slots=True)
class Canary:
    """A defect: its description, the rule that it breaks, and its patches."""

    text: str
    rule: str
    """The rule of docs/rules.md that it breaks."""
    patches: Callable[[], list[Patch]]

    @contextmanager
    def applied(self) -> Iterator[None]:
        """Put the defect into the code under test inside the block."""
        made = self.patches()
        try:
            for patch in made:
                patch.apply()
            yield
        finally:
            for patch in reversed(made):
                patch.undo()


CANARIES: dict[str, Canary] = {
    "ack-before-sync": Canary("adds are acknowledged before the journal is synced", "B1", bookie.ack_before_sync),
    "journal-rewrites-pages": Canary("the journal writes a page with acknowledged records again", "B3",
                                     bookie.journal_rewrites_pages),
    "entry-log-rewrites-pages": Canary("an entry log writes a page that a manifest counts again", "B3",
                                       bookie.entry_log_rewrites_pages),
    "retry-failed-sync": Canary("a failed sync is retried", "B1", bookie.retry_failed_sync),
    "trust-unsynced-replay": Canary("what replay finds is not made durable again", "B1", bookie.trust_replay),
    "trim-before-commit": Canary("the journal is trimmed before the index is committed", "B7", bookie.trim_early),
    "directory-not-synced": Canary("a new file's directory is not synced", "B7", bookie.directory_not_synced),
    "fence-not-durable": Canary("a fence is not made durable", "B2", bookie.fence_not_durable),
    "private-is-forgotten": Canary("a checkpoint forgets that a ledger is private", "S3", bookie.private_is_forgotten),
    "private-not-journaled": Canary("it is not journaled that a ledger is private", "S3",
                                    bookie.private_is_not_journaled),
    "private-lost-is-public": Canary("a bookie in doubt takes what it has forgotten to be public", "S3",
                                     bookie.lost_privacy_is_public),
    "roles-are-not-checked": Canary("a known principal may ask everything", "S1", security.roles_are_not_checked),
    "disabled-principal-stays": Canary("a principal that is disabled keeps its connections", "S1",
                                       security.disabled_principals_stay),
    "new-ledgers-are-believed": Canary("ledgers without a pinned key are not looked up", "S2",
                                       security.new_ledgers_are_believed),
    "refused-add-is-confirmed": Canary("an add beyond a limit is confirmed and not stored", "B1",
                                       security.refused_adds_are_confirmed),
    "fence-after-lookup": Canary("a fencing read looks up before it fences", "F2",
                                 lambda: [*bookie.fence_after_lookup(), *client.unfenced_are_read()]),
    "fence-lets-adds-through": Canary("adds that a fence overtook are accepted", "F2", bookie.fence_ignored),
    "doubt-answers-absent": Canary("a bookie in doubt answers absent and accepts adds", "B4", bookie.no_doubt),
    "corruption-is-absence": Canary("damaged entries are answered as absent", "R2", bookie.corruption_is_absence),
    "index-put-hides": Canary("an index put hides part of an older run", "R2", bookie.index_put_hides),
    "compaction-removes-early": Canary("compaction removes a log before the index points elsewhere", "I1",
                                       bookie.compaction_removes_early),
    "garbage-by-listing": Canary("every ledger that a listing leaves out is garbage", "B5",
                                 bookie.garbage_by_listing),
    "garbage-believes-old-metadata": Canary("ledgers that restored metadata have never allocated are garbage", "B5",
                                            bookie.garbage_believes_old_metadata),
    "checkpoint-forgets-fence": Canary("a checkpoint forgets that a ledger is fenced", "B2",
                                       bookie.checkpoint_forgets_fence),
    "garbage-lists-first": Canary("the metadata is listed before the local set is taken", "B5",
                                  bookie.garbage_lists_first),
    "reads-do-not-fence": Canary("recovery reads do not fence", "F4", client.reads_do_not_fence),
    "recover-below-fragment": Canary("recovery starts below the last fragment", "F3", client.recover_below),
    "coverage-off-by-one": Canary("coverage needs one answer too few", "F4", client.coverage_off_by_one),
    "truncated-is-absence": Canary("a truncated answer is taken as absence", "R2", client.truncated_is_absence),
    "recoverer-makes-lac": Canary("a recovering client publishes a LAC of its own", "W2", client.recoverer_makes_lac),
    "recovery-keeps-last-change": Canary("recovery writes only the last of its ensemble changes", "F5",
                                         client.last_change_counts),
    "early-ensemble-commit": Canary("recovery commits its ensemble changes early", "F5", client.early_commit),
    "ack-during-change": Canary("adds are acknowledged during an ensemble change", "W1", client.ack_during_change),
    "replaced-still-counts": Canary("confirmations of a replaced bookie still count", "W3",
                                    client.replaced_still_counts),
    "force-across-restart": Canary("a force counts although the bookie has restarted since it accepted the entries",
                                   "W10", client.force_across_restarts),
    "accepted-moves-lac": Canary("the LAC moves for entries that are only accepted", "W10",
                                 client.accepted_is_acknowledged),
    "replaced-acceptance-kept": Canary("a new bookie is not sent what the replaced one had accepted", "W10",
                                       client.replaced_bookies_acceptance_is_kept),
    "debt-is-forgotten": Canary("missing copies are not recorded", "I9", client.debt_is_forgotten),
    "copies-are-believed": Canary("an ensemble changes before the joiner has the copies", "G3",
                                  client.joiners_copies_are_believed),
    "full-is-acknowledged": Canary("the LAFR is counted from the LAC", "G1", client.full_is_acknowledged),
    "takeover-owes-nothing": Canary("a takeover records no debts", "G5", books.takeovers_owe_nothing),
    "required-copies-are-missing": Canary("a term that requires all copies ends without them", "G4",
                                        books.required_copies_are_not_waited_for),
    "reseal-on-resend": Canary("entries are sealed again when they are resent", "W2", client.reseal),
    "read-above-lac": Canary("ordinary reads go above the LAC", "R1", client.read_above_lac),
    "repair-names-early": Canary("a bookie names itself before its copies are durable", "C3",
                                 repair.names_before_copies_are_durable),
    "repair-skips-silent": Canary("an entry whose source does not answer is left out", "C4",
                                  repair.takes_refusals_for_answers),
    "repair-skips-denied": Canary("an entry that one source denies is left out", "C4",
                                  repair.leaves_out_what_one_source_denies),
    "repair-wrong-position": Canary("the entries of another position are copied", "C3",
                                    repair.copies_for_the_wrong_position),
    "repair-reseals": Canary("copies are sealed again with a newer LAC", "C6", repair.seals_copies_again),
    "repair-blind-write": Canary("a bookie names itself whatever the metadata have become", "C5",
                                 repair.names_on_any_version),
    "repair-open-fragment": Canary("a bookie takes a slot in the last fragment of an open ledger", "C2",
                                   repair.repairs_open_fragments),
    "repair-doubt-ends-early": Canary("doubt ends for the last fragment of an open ledger", "D3",
                                      repair.doubt_ends_for_open_fragments),
    "repair-documents-grow": Canary("documents of repair have no bound in bytes", "A12",
                                    repair.documents_have_no_bound),
    "repair-floor-lifted": Canary("ordinary adds are taken again when doubt ends", "D1",
                                  repair.floor_is_lifted_when_doubt_ends),
    "log-takeover-does-not-fence": Canary("a new leader does not fence the last segments", "L1",
                                          logs.takeover_does_not_fence),
    "log-orphans-forgotten": Canary("ledgers of candidates that died are forgotten", "L1",
                                    logs.orphans_are_forgotten),
    "log-drops-last-segments": Canary("truncation drops one of the last two segments", "L3",
                                      logs.truncation_drops_last_segments),
    "log-deletes-before-it-drops": Canary("a segment's ledger is deleted before the list drops it", "L3",
                                          logs.deletes_before_it_drops),
    "log-old-leader-heals": Canary("a leader that another client took over from heals", "L4", logs.old_leader_heals),
    "log-follower-guesses-end": Canary("a follower takes the LAC of an open segment for its end", "P1",
                                       logs.follower_guesses_the_end),
    "log-roll-does-not-wait": Canary("a roll does not wait for what was sent to the segment before", "P2",
                                     logs.roll_does_not_wait),
    "log-heals-from-first-doubt": Canary("a leader that heals sends again what was added", "P5",
                                         logs.heals_from_first_doubt),
    "log-outcome-too-early": Canary("an add's outcome is told while its term goes on", "P6", logs.outcome_too_early),
    "log-truncation-inexact": Canary("truncation drops segments and leaves the first position", "P7",
                                     logs.truncation_keeps_beginning),
    "log-retention-ignores-cursors": Canary("retention drops what a cursor holds back", "P8",
                                            logs.retention_ignores_cursors),
    "log-retention-believes-clock": Canary("retention by age asks the leader's clock alone", "P8",
                                           logs.retention_believes_own_clock),
    "log-retention-below-size": Canary("retention by size drops what is to be kept", "P8",
                                       logs.retention_drops_below_its_size),
    "log-time-falls": Canary("a new segment does not start at the last time of sealing", "P10", logs.time_falls),
    "log-cursor-goes-back": Canary("a cursor is stored without regard to what is stored", "P11",
                                   logs.cursor_goes_back),
    "withdrawn-add-is-sent": Canary("an add that timed out in the queue is let in", "P16",
                                    logs.withdrawn_adds_are_sent),
    "flush-waits-for-last": Canary("a flush waits for the last add of the queue only", "P17",
                                   logs.flush_waits_for_last),
    "log-position-unchecked": Canary("expected_position is not compared", "P12", logs.position_unchecked),
    "log-deletion-keeps-ledgers": Canary("a deleted log's ledgers are not deleted", "P13",
                                         logs.deletion_keeps_ledgers),
    "stream-old-leader-heals": Canary("a leader that another client took over from heals", "T10",
                                      streams.old_leader_heals),
    "stream-term-not-compared": Canary("adds of a term that is over are accepted", "T7", streams.term_not_compared),
    "stream-fence-ends-doubt": Canary("a fence that a bookie in doubt receives ends the doubt above its term", "T12",
                                      streams.fence_ends_doubt),
    "stream-roll-does-not-wait": Canary("adds are acknowledged while a roll is being stored", "U6",
                                        streams.roll_does_not_wait),
    "stream-pages-change": Canary("a page is changed after it was made", "U2", streams.pages_change),
    "stream-pages-go-early": Canary("a page is deleted before the metadata name another", "U2",
                                    streams.pages_go_early),
    "stream-truncates-last-fragment": Canary("truncation removes a part of the last fragment", "U4",
                                             streams.truncates_last_fragment),
    "stream-nothing-is-trimmed": Canary("bookies keep what was truncated", "U5", streams.nothing_is_trimmed),
    "stream-trim-not-durable": Canary("a bookie forgets a trim when it restarts", "U5",
                                      streams.trims_are_not_durable),
    "stream-trims-what-is-kept": Canary("bookies trim the first entry that is kept", "U5",
                                        streams.trims_what_is_kept),
    "stream-outcome-too-early": Canary("an add's outcome is told while its term goes on", "P6",
                                       streams.outcome_too_early),
    "stream-truncates-early": Canary("a stream is truncated before readers are told", "P7",
                                     streams.truncates_before_readers_know),
    "stream-retention-ignores-cursors": Canary("retention of a stream drops what a cursor holds back", "P8",
                                               streams.retention_ignores_cursors),
    "stream-retention-believes-clock": Canary("retention of a stream by age asks the leader's clock alone", "P8",
                                              logs.retention_believes_own_clock),
    "stream-time-falls": Canary("a new term does not start at the last time of sealing", "P10", streams.time_falls),
    "stream-deletion-keeps-stream": Canary("the stream of a deleted log is not deleted", "P13",
                                           streams.deletion_keeps_stream),
    "stream-abandoned-is-forgotten": Canary("the stream of a creator that died is forgotten", "P13",
                                            streams.abandoned_streams_are_forgotten),
    "candidate-ignores-its-lease": Canary("a candidate takes a log over without asking its lease", "P3",
                                          hardships.candidates_do_not_ask_their_lease),
    "identity-is-not-confirmed": Canary("a bookie registers again whatever became of its id", "B10",
                                        hardships.identities_are_not_confirmed),
    "lineage-is-not-compared": Canary("directories that count more starts are accepted, whatever data they hold",
                                      "B10", hardships.lineages_are_not_compared),
    "one-clock-is-believed": Canary("time has passed once one clock says so", "M5", logs.retention_believes_own_clock),
    "kept-metadata-are-believed": Canary("a takeover asks bookies by metadata of long ago", "T14",
                                         hardships.kept_metadata_are_believed),
}  # fmt: skip
