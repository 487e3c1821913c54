// The theme without Airflow: Chakra's own, with the names that Airflow gives to the colours of states.
import { createSystem, defaultConfig, defineConfig } from "@chakra-ui/react";

/** Airflow's names, and which of Chakra's colours is nearest. */
const STATES: Record<string, string> = {
  success: "green",
  failed: "red",
  running: "cyan",
  queued: "gray",
  scheduled: "gray",
  restarting: "purple",
  up_for_retry: "yellow",
  up_for_reschedule: "blue",
  removed: "gray",
  none: "gray",
};

function tones(colour: string) {
  const dark = `{colors.${colour}.700}`;
  return {
    solid: { value: colour === "gray" ? "{colors.gray.600}" : dark },
    contrast: { value: "white" },
  };
}

export const system = createSystem(
  defaultConfig,
  defineConfig({
    globalCss: { body: { bg: "bg", color: "fg" } },
    theme: {
      semanticTokens: {
        colors: Object.fromEntries(Object.entries(STATES).map(([name, colour]) => [name, tones(colour)])),
      },
    },
  }),
);
