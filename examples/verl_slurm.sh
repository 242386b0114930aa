#!/bin/bash
# A job of verl with an allocator on Slurm: Ray on all nodes, then the trainer on the first.
#SBATCH --job-name=fixed_baseline
#SBATCH --nodes=4
#SBATCH --ntasks-per-node=1
#SBATCH --cpus-per-task=96
#SBATCH --gpus-per-node=8
#SBATCH --exclusive
#SBATCH --requeue

set -euo pipefail
source /shared/venv/bin/activate
nodes=($(scontrol show hostnames "$SLURM_JOB_NODELIST"))
head=$(srun --nodes=1 --ntasks=1 --nodelist="${nodes[0]}" hostname --ip-address | cut -d' ' -f1)
export RAY_ADDRESS="$head:6379"

srun --nodes=1 --ntasks=1 --nodelist="${nodes[0]}" \
    ray start --head --node-ip-address="$head" --port=6379 --num-cpus="$SLURM_CPUS_PER_TASK" --block &
timeout 600 bash -c 'until ray health-check --address "$RAY_ADDRESS" 2> /dev/null; do sleep 2; done' ||
    { echo "Ray must answer at $RAY_ADDRESS within 600 s, got nothing; see what ray start said above" >&2; exit 1; }
others=$((SLURM_NNODES - 1))
if [ "$others" -gt 0 ]; then
    srun --nodes="$others" --ntasks="$others" --exclude="${nodes[0]}" \
        ray start --address="$RAY_ADDRESS" --num-cpus="$SLURM_CPUS_PER_TASK" --block &
fi
timeout 600 python - "$SLURM_NNODES" << 'EOF'
import sys, time
import ray

ray.init(log_to_driver=False)
while sum(node["Alive"] for node in ray.nodes()) < int(sys.argv[1]):
    time.sleep(1)
EOF

python -m apportion.verl allocation=fixed_baseline \
    trainer.nnodes="$SLURM_NNODES" trainer.n_gpus_per_node=8 \
    trainer.default_local_dir=/shared/runs/fixed_baseline trainer.save_freq=20    # and your data, model and engine: docs/verl.md
