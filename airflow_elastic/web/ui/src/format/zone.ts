// The time zone that the viewer has chosen in Airflow, which keeps it as JSON in the browser's storage.
import { useSyncExternalStore } from "react";

const KEY = "timezone";

/** The chosen zone, or the browser's own. */
export function timeZone(): string {
  try {
    const kept = localStorage.getItem(KEY);
    if (kept) {
      const zone: unknown = kept.startsWith('"') ? JSON.parse(kept) : kept;
      if (typeof zone === "string" && known(zone)) return zone;
    }
  } catch {
    // Storage may be closed to us; then the browser's own zone holds.
  }
  return Intl.DateTimeFormat().resolvedOptions().timeZone || "UTC";
}

function known(zone: string): boolean {
  try {
    return zone !== "" && Boolean(new Intl.DateTimeFormat("en", { timeZone: zone }));
  } catch {
    return false; // another program on this host may keep something else there
  }
}

/** Chooses a zone, as Airflow's own menu does. */
export function chooseZone(zone: string): void {
  localStorage.setItem(KEY, JSON.stringify(zone));
  window.dispatchEvent(new StorageEvent("local-storage", { key: KEY }));
}

function subscribe(changed: () => void): () => void {
  window.addEventListener("storage", changed);
  window.addEventListener("local-storage", changed); // Airflow's own news of a change in the same tab
  return () => {
    window.removeEventListener("storage", changed);
    window.removeEventListener("local-storage", changed);
  };
}

export function useZone(): string {
  return useSyncExternalStore(subscribe, timeZone);
}
