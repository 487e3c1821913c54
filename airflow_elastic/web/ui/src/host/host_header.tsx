// Above the pages without Airflow: the name, the time zone, light or dark.
import { useState } from "react";
import { Link } from "react-router-dom";
import { chooseZone, useZone } from "../format/zone.ts";
import { choose, type Mode, mode } from "./colour_mode.ts";

const MODES: { value: Mode; word: string }[] = [
  { value: "system", word: "As the system" },
  { value: "light", word: "Light" },
  { value: "dark", word: "Dark" },
];

export function HostHeader() {
  const [chosen, setChosen] = useState(mode);
  const zone = useZone();
  const own = Intl.DateTimeFormat().resolvedOptions().timeZone;
  const zones = [...new Set([own, "UTC", zone])];
  return (
    <header className="el-host">
      <Link to="?" className="el-host-name">
        airflow-elastic
      </Link>
      <label>
        <span className="el-hidden">Time zone</span>
        <select value={zone} onChange={(event) => chooseZone(event.target.value)}>
          {zones.map((name) => (
            <option key={name}>{name}</option>
          ))}
        </select>
      </label>
      <label>
        <span className="el-hidden">Colours</span>
        <select
          value={chosen}
          onChange={(event) => {
            choose(event.target.value as Mode);
            setChosen(event.target.value as Mode);
          }}
        >
          {MODES.map(({ value, word }) => (
            <option key={value} value={value}>
              {word}
            </option>
          ))}
        </select>
      </label>
    </header>
  );
}
