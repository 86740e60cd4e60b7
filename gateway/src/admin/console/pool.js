// What a phone means for the pool's work. Pure: the one place that counts.

/** States in which a replica takes work, unless its phone wants to be spared. */
const SERVING = new Set(["ready", "suspect", "probation"]);
/** States of a replica that cannot be reached, or not reliably. */
const AWAY = new Set(["joining", "out", "suspect"]);

export const takesWork = (replica) => replica.takes_work === true;
/** It would take work, and is spared for what its phone says about itself. */
export const isPaused = ({ state, limit }) => limit?.level === "paused" && SERVING.has(state);
export const isReady = (replica) => replica.state === "ready" && takesWork(replica);
/** What a replica is counted as and drawn as: its state, or that it rests. */
export const standingOf = (replica) => (isPaused(replica) ? "paused" : replica.state);
/** It may come into service by itself, soon. One that was asked and did not answer is not coming: it cannot be reached. */
export const isComing = ({ state, problem }) => state === "loading" || state === "quarantine" || (state === "joining" && !problem);
/** It served a gateway that was here before, and this one has not reached it since it was started. */
export const isMissing = ({ missing, state, problem }) => Boolean(missing && problem) && AWAY.has(state);

/** The pool by what its phones mean for its work. */
export function tally(state) {
  const replicas = [...state.replicas.values()];
  const by = (test) => replicas.filter(test);
  return {
    replicas, ready: by(isReady), coming: by(isComing), paused: by(isPaused), missing: by(isMissing),
    probation: by((r) => r.state === "probation" && takesWork(r)), suspect: by((r) => r.state === "suspect" && !isMissing(r)),
    out: by((r) => r.state === "out" && !isMissing(r)),
    /** New ones that were asked and did not answer. */
    unreached: by((r) => r.state === "joining" && r.problem && !isMissing(r)),
    wrong: by((r) => r.state === "misconfigured"), draining: by((r) => r.state === "draining"),
    /** They work, and something is said to be wrong with them. */
    amiss: by((r) => isReady(r) && r.problem),
    serves: replicas.some(takesWork),
  };
}
