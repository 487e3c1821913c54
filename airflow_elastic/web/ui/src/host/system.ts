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

function both(light: string, dark: string) {
  return { value: { _light: light, _dark: dark } };
}

export const system = createSystem(
  defaultConfig,
  defineConfig({
    globalCss: { body: { bg: "bg", color: "fg" } },
    theme: {
      semanticTokens: {
        colors: {
          ...Object.fromEntries(Object.entries(STATES).map(([name, colour]) => [name, tones(colour)])),
          bg: { DEFAULT: both("white", "#151b24"), subtle: both("#f6f8fa", "#0f141b"), panel: both("white", "#1a212c") },
          fg: { DEFAULT: both("#18212f", "#e4e9f0"), muted: both("#566273", "#9ba8b9") },
          border: { DEFAULT: both("#dfe4ea", "#2c3644") },
        },
      },
    },
  }),
);
