// What a rank printed: live, searched on the server, the rank that failed first.
import { useEffect, useState } from "react";
import { address } from "../api/client.ts";
import { usePolled } from "../api/polling.ts";
import type { LogIndex, Overview } from "../api/types.ts";
import { bytes } from "../format/numbers.ts";
import { Choice, Select } from "../parts/choice.tsx";
import { Empty, Panel, Pending } from "../parts/panel.tsx";
import { useWords } from "../parts/query.ts";
import { Search } from "../parts/search.tsx";
import { usePollInterval } from "../parts/settings.ts";
import { chosen, type Place, rankOptions } from "./choose.ts";
import { LogText } from "./log_text.tsx";
import { Matches } from "./matches.tsx";
import { useLog } from "./use_log.ts";

export function LogsView({ path, overview }: { path: string; overview: Overview }) {
  const [words, change] = useWords();
  const interval = usePollInterval();
  const polled = usePolled<LogIndex>(address(`/${path}/logs`), interval * 3);
  const [wrap, setWrap] = useState(true);
  const index = polled.document;
  const generation = Number(words.get("generation")) || undefined;
  const found = index ? chosen(index, words.get("attempt"), words.get("rank")) : null;
  const place = found && (generation ? { ...found, generation } : found);
  const text = words.get("q") ?? "";
  const at = words.get("at") ? Number(words.get("at")) : null;

  if (!index) return <Pending trouble={polled.trouble} lines={6} />;
  if (!place) {
    return (
      <Panel title="Logs">
        <Empty>{overview.status.ended_at ? "No rank has left a log." : "No rank has printed anything yet."}</Empty>
      </Panel>
    );
  }
  const attempts = index.attempts.toSorted((a, b) => b.number - a.number);
  const ranks = attempts.find(({ number }) => number === place.attempt)?.ranks ?? [];
  const tools = (
    <div className="el-tools">
      <Select
        label="Attempt"
        value={String(place.attempt)}
        options={attempts.map(({ number }) => ({ value: String(number), word: `Attempt ${number}` }))}
        onChange={(attempt) => change({ attempt, rank: null, generation: null, at: null })}
      />
      <Select
        label="Rank"
        value={String(place.rank)}
        options={rankOptions(ranks)}
        onChange={(rank) => change({ attempt: String(place.attempt), rank, generation: null, at: null })}
      />
      <Search label="Search this log" value={text} onChange={(q) => change({ q, at: null })} />
      <Choice
        label="Long lines"
        value={wrap ? "wrap" : "cut"}
        options={[
          { value: "wrap", word: "Wrap" },
          { value: "cut", word: "Scroll" },
        ]}
        onChange={(value) => setWrap(value === "wrap")}
      />
    </div>
  );
  const live = overview.status.ended_at === null && place.attempt === attempts[0]?.number;
  return (
    <Panel title={`Attempt ${place.attempt}, rank ${place.rank}`} aside={tools}>
      <Matches path={path} place={place} text={text} live={live} onPick={(offset) => change({ at: String(offset) })} />
      <Reader key={`${place.attempt}.${place.rank}.${generation}.${at}`} {...{ path, place, at, text, wrap, live }} onEnd={() => change({ at: null })} />
    </Panel>
  );
}

interface ReaderProps {
  path: string;
  place: Place;
  at: number | null;
  text: string;
  wrap: boolean;
  live: boolean;
  onEnd: () => void;
}

function Reader({ path, place, at, text, wrap, live, onEnd }: ReaderProps) {
  const interval = usePollInterval();
  const log = useLog(path, place, at, live ? interval : interval * 10);
  const [follow, setFollow] = useState(at === null);
  useEffect(() => setFollow(at === null), [at]);
  if (!log.read) return <Pending trouble={log.trouble} lines={6} />;
  return (
    <>
      <LogText log={log} text={text} wrap={wrap} follow={follow} onFollow={setFollow} />
      <div className="el-log-foot">
        <span className="el-muted">
          {log.size === 0 ? "Empty so far" : `${bytes(log.next - log.offset)} of ${bytes(log.size)} shown`}
          {log.trouble && `. ${log.trouble}`}
        </span>
        {at !== null ? (
          <button type="button" className="el-link" onClick={onEnd}>
            Go to the end
          </button>
        ) : (
          <label className="el-check">
            <input type="checkbox" checked={follow} onChange={(event) => setFollow(event.target.checked)} />
            Follow
          </label>
        )}
      </div>
    </>
  );
}
