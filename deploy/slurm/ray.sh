# shellcheck shell=bash
# A Ray cluster over the nodes of a Slurm job. Source this file: `ray_up` starts it and sets RAY_ADDRESS, `ray_down` ends it.
#
# The script that sources this file sets `python` and `here` (this folder).
#
# Every Ray process requires a token, which is generated here for this job only. `ray stop` is never called, because it
# would end the Ray processes of other jobs on a shared node; each `ray start --block` ends with its srun.

: "${python:=python}" "${here:=$SLURM_SUBMIT_DIR/deploy/slurm}"

# Start Ray processes on some nodes: ray_member NODES OPTION...
ray_member() {
  local nodes=$1
  shift
  srun --nodes="$(wc -w <<< "${nodes//,/ }")" --ntasks-per-node=1 --nodelist="$nodes" --export=ALL \
    "$python" -m ray.scripts.scripts start "$@" --num-cpus="${SLURM_CPUS_PER_TASK:-1}" --num-gpus="${gpus:-0}" \
    --disable-usage-stats --block &
  ray_members+=($!)
}

ray_up() {
  local nodes first gpus=${SLURM_GPUS_ON_NODE:-0} port=$((20000 + SLURM_JOB_ID % 20000)) others
  ray_members=()
  mapfile -t nodes < <(scontrol show hostnames "$SLURM_JOB_NODELIST")
  first=${RAY_HEAD_ADDRESS:-$(srun --nodes=1 --ntasks=1 --nodelist="${nodes[0]}" hostname --ip-address | awk '{print $1}')}
  export RAY_AUTH_MODE=token RAY_USAGE_STATS_ENABLED=0 RAY_DISABLE_IMPORT_WARNING=1
  export RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER=1   # with 0, which posttrain sets on one machine, Ray listens on 127.0.0.1 only
  export RAY_raylet_start_wait_time_s=300      # loading Ray's libraries from a shared file system is slow
  RAY_AUTH_TOKEN=$("$python" -c 'import secrets; print(secrets.token_hex(32))')
  export RAY_AUTH_TOKEN RAY_ADDRESS="$first:$port"
  RAY_ADDRESS='' ray_member "${nodes[0]}" --head --node-ip-address="$first" --port="$port" --include-dashboard=false \
    --temp-dir="${RAY_FOLDER:-/tmp/ray-$SLURM_JOB_ID}"
  until "$python" -m ray.scripts.scripts health-check --address "$RAY_ADDRESS" > /dev/null 2>&1; do
    kill -0 "${ray_members[0]}" || return 1
    sleep 1
  done
  if ((${#nodes[@]} > 1)); then
    others=$(IFS=,; echo "${nodes[*]:1}")
    RAY_ADDRESS='' ray_member "$others" --address="$first:$port"
  fi
  "$python" "$here/joined.py" "${#nodes[@]}"
}

ray_down() {
  local member
  for member in "${ray_members[@]}"; do kill -TERM "$member" 2> /dev/null || true; done
  for member in "${ray_members[@]}"; do wait "$member" || true; done
}
