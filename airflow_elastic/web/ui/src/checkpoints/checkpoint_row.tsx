// One checkpoint.
import { number, numberMap } from "../api/numbers.ts";
import type { Action, ActionName, Checkpoint } from "../api/types.ts";
import { bytes, grouped, measure, NOTHING } from "../format/numbers.ts";
import { ago } from "../format/times.ts";
import { useServerNow } from "../parts/now.ts";
import { Moment } from "../parts/moment.tsx";

const TIERS: Record<string, string> = {
  storage: "In the storage of the run: it survives the loss of every machine",
  memory: "In the workers' memory, as they last said: ranks that die there go on from it",
  disk: "On the workers' own disks, as they last said: it survives a restart of the machines",
};

/** Words for the reasons that are none by themselves. */
const REASONS: Record<string, string> = {
  steps: "after so many steps",
  seconds: "after so long",
  script: "the script asked",
  requested: "somebody asked",
  final: "end of training",
};

interface Props {
  checkpoint: Checkpoint;
  metric: boolean;
  actions: readonly Action[];
  onAsk: (action: Action) => void;
}

export function CheckpointRow({ checkpoint, metric, actions, onAsk }: Props) {
  const { step, at, tiers, damaged, pinned } = checkpoint;
  const now = useServerNow();
  const stored = !damaged && tiers.includes("storage");
  const wanted: ActionName[] = [...(pinned ? (["unpin"] as const) : stored ? (["pin"] as const) : []), ...(stored ? (["resume"] as const) : [])];
  return (
    <tr className={damaged ? "el-row-error" : ""}>
      <th scope="row" className="el-num">{grouped(step)}</th>
      <td data-name="Saved" className="el-when">
        {at === null ? <span className="el-muted">{damaged ? NOTHING : "not yet"}</span> : <>{ago(now - at)} <span className="el-sub"><Moment at={at} /></span></>}
      </td>
      <td data-name="Size" className="el-num">{bytes(checkpoint.bytes)}</td>
      <td data-name="Kept in" className="el-tiers">
        {tiers.map((name) => (
          <span key={name} className="el-tier" title={TIERS[name]}>
            {name}
          </span>
        ))}
      </td>
      <td data-name="Attempt" className="el-num">{checkpoint.attempt ?? NOTHING}</td>
      <td data-name="Why it was saved">{REASONS[checkpoint.reason ?? ""] ?? checkpoint.reason ?? NOTHING}</td>
      {metric && (
        <td
          data-name="Metric"
          className="el-num"
          title={measures(checkpoint.metrics) || undefined}
        >
          {measure(number(checkpoint.metric))}
        </td>
      )}
      <td data-name="Verified" className="el-when"><Verified checkpoint={checkpoint} /></td>
      <td data-name="Remarks" className="el-remarks">
        {damaged && <span className="el-text-error">Damaged: {damaged}</span>}
        {pinned && (
          <span>
            Pinned{pinned.by && ` by ${pinned.by}`}
            {pinned.at !== null && <span className="el-muted"> <Moment at={pinned.at} /></span>}
          </span>
        )}
        {checkpoint.evaluations?.map(({ metrics, at, by }) => (
          <span key={`${by} ${at}`} title={by}>
            Evaluated: {measures(metrics)} <span className="el-muted"><Moment at={at} /></span>
          </span>
        ))}
        {checkpoint.used_by.length > 0 && <span>Used by {checkpoint.used_by.join(", ")}</span>}
      </td>
      {actions.length > 0 && (
        <td className="el-row-actions">
          {wanted.map((name) => {
            const action = actions.find((one) => one.name === name);
            return (
              action && (
                <button
                  key={name}
                  type="button"
                  className="el-link"
                  disabled={!action.allowed}
                  title={action.allowed ? action.cost : (action.why_not ?? undefined)}
                  onClick={() => onAsk(action)}
                >
                  {name === "resume" ? "resume from here" : name}
                </button>
              )
            );
          })}
        </td>
      )}
    </tr>
  );
}

/** `accuracy 0.91, loss 0.3` */
function measures(metrics: Checkpoint["metrics"]): string {
  return Object.entries(numberMap(metrics)).map(([name, value]) => `${name} ${measure(value)}`).join(", ");
}

/** When all its bytes were last compared with their checksums, and by whom; older releases have recorded neither. */
function Verified({ checkpoint: { verified, verified_at: at, verified_by: by } }: { checkpoint: Checkpoint }) {
  if (at === null) return verified ? <span>yes</span> : <span className="el-muted">not yet</span>;
  return <><Moment at={at} />{by && <span className="el-sub">by {by}</span>}</>;
}
