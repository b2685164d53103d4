-- A results database as partitune 0.1.0 first wrote it (schema step m001_initial), dumped with Python's sqlite3 iterdump.
BEGIN TRANSACTION;
CREATE TABLE partitune_migrations (
	name TEXT NOT NULL, 
	applied_at TEXT NOT NULL, 
	PRIMARY KEY (name)
);
INSERT INTO "partitune_migrations" VALUES('m001_initial','2026-11-29T22:46:39.602198+00:00');
CREATE TABLE partitune_stages (
	trial_id INTEGER NOT NULL, 
	stage INTEGER NOT NULL, 
	layers INTEGER NOT NULL, 
	kinds TEXT NOT NULL, 
	compute_s DOUBLE NOT NULL, 
	transfer_s DOUBLE NOT NULL, 
	wait_s DOUBLE NOT NULL, 
	busy_fraction DOUBLE NOT NULL, 
	weights_bytes BIGINT NOT NULL, 
	free_bytes BIGINT NOT NULL, 
	kv_blocks BIGINT NOT NULL, 
	stranded_bytes BIGINT NOT NULL, 
	PRIMARY KEY (trial_id, stage), 
	FOREIGN KEY(trial_id) REFERENCES partitune_trials (id)
);
INSERT INTO "partitune_stages" VALUES(1,0,47,'{"kda":47}',1.5,0.25,0.125,0.8,96636764160,42949672960,3000,2147483648);
INSERT INTO "partitune_stages" VALUES(1,1,46,'{"kda":46}',1.5,0.25,0.125,0.8,96636764160,42949672960,3000,2147483648);
CREATE TABLE partitune_studies (
	id INTEGER NOT NULL, 
	name TEXT NOT NULL, 
	created_at TEXT NOT NULL, 
	finished_at TEXT, 
	state TEXT NOT NULL, 
	spec TEXT NOT NULL, 
	spec_digest TEXT NOT NULL, 
	partitune_version TEXT NOT NULL, 
	engine TEXT NOT NULL, 
	engine_version TEXT NOT NULL, 
	runner TEXT NOT NULL, 
	random_seed BIGINT NOT NULL, 
	PRIMARY KEY (id), 
	UNIQUE (name)
);
INSERT INTO "partitune_studies" VALUES(1,'k3','2026-11-29T22:46:39.604830+00:00',NULL,'running','{"knobs":[{"name":"max_num_seqs","values":[64,128]}],"model":"kimi-k3","parallel":{"pp":2,"tp":8}}','f41eca906dc6','0.1.0','vllm','0.33.0','simulator',7);
CREATE TABLE partitune_trials (
	id INTEGER NOT NULL, 
	study_id INTEGER NOT NULL, 
	number INTEGER NOT NULL, 
	partition TEXT NOT NULL, 
	knobs TEXT NOT NULL, 
	digest TEXT NOT NULL, 
	plan_digest TEXT NOT NULL, 
	origin TEXT NOT NULL, 
	outcome TEXT NOT NULL, 
	reason TEXT NOT NULL, 
	simulated BOOLEAN, 
	metrics TEXT, 
	measurement TEXT, 
	constraints TEXT NOT NULL, 
	started_at TEXT NOT NULL, 
	finished_at TEXT NOT NULL, 
	duration_s DOUBLE NOT NULL, 
	PRIMARY KEY (id), 
	UNIQUE (study_id, number), 
	FOREIGN KEY(study_id) REFERENCES partitune_studies (id)
);
INSERT INTO "partitune_trials" VALUES(1,1,0,'47,46','{}','970544959a17','cdd85931e38b','default:','ok','',1,'{"output_throughput_tok_s":1234.5,"ttft_p99_ms":87.25}','{"constraints":{"ttft_p99_ms":-0.5},"kv_blocks":3000,"kv_tokens":48000,"limiting_reason":"LM head","limiting_stage":1,"regime":"R1"}','{"ttft_p99_ms":-0.5}','2026-11-29T22:46:38.869332+00:00','2026-11-29T22:46:39.619332+00:00',0.75);
INSERT INTO "partitune_trials" VALUES(2,1,1,'47,46','{"seqs":64}','a4c03429f917','cdd85931e38b','sampler:1','infeasible','stage 1 is short of 3.5 GiB',NULL,NULL,NULL,'{}','2026-11-29T22:46:39.623735+00:00','2026-11-29T22:46:39.623735+00:00',0.0);
CREATE INDEX partitune_trials_by_digest ON partitune_trials (study_id, digest);
CREATE INDEX partitune_trials_by_outcome ON partitune_trials (study_id, outcome);
COMMIT;
