// States of a run: the word that people see, and Airflow's colour for what is alike.

interface Look {
  word: string;
  /** Airflow's name of the colour. */
  colour: string;
}

const looks: Record<string, Look> = {
  submitting: { word: "Submitting", colour: "queued" },
  queued: { word: "Queued", colour: "queued" },
  "waiting for capacity": { word: "Waiting for capacity", colour: "up_for_reschedule" },
  pulling: { word: "Pulling image", colour: "scheduled" },
  starting: { word: "Starting", colour: "scheduled" },
  running: { word: "Running", colour: "running" },
  ending: { word: "Ending", colour: "restarting" },
  pausing: { word: "Up for retry", colour: "up_for_retry" },
  succeeded: { word: "Success", colour: "success" },
  failed: { word: "Failed", colour: "failed" },
  stopped: { word: "Stopped", colour: "removed" },
};

export const STATES = Object.keys(looks);

export function look(state: string): Look {
  return looks[state] ?? { word: state.charAt(0).toUpperCase() + state.slice(1), colour: "none" };
}
