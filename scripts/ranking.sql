-- The five highest ranks by number of votes, ties included: users, then links.
\pset footer off
\timing off

WITH scored AS (
    SELECT username,
           count(*) FILTER (WHERE score = 1) AS upvotes,
           count(*) FILTER (WHERE score = -1) AS downvotes,
           count(*) AS votes
    FROM votes
    GROUP BY username
), ranked AS (
    SELECT username,
           votes,
           upvotes - downvotes AS score,
           round(upvotes::numeric / votes, 3) AS positive,
           dense_rank() OVER (ORDER BY votes DESC) AS vote_rank,
           dense_rank() OVER (ORDER BY upvotes - downvotes DESC) AS score_rank
    FROM scored
)
SELECT * FROM ranked WHERE vote_rank < 6 ORDER BY vote_rank, positive DESC, username;

WITH scored AS (
    SELECT link,
           count(*) FILTER (WHERE score = 1) AS upvotes,
           count(*) FILTER (WHERE score = -1) AS downvotes,
           count(*) AS votes
    FROM votes
    GROUP BY link
), ranked AS (
    SELECT link,
           votes,
           upvotes - downvotes AS score,
           round(upvotes::numeric / votes, 3) AS positive,
           dense_rank() OVER (ORDER BY votes DESC) AS vote_rank,
           dense_rank() OVER (ORDER BY upvotes - downvotes DESC) AS score_rank
    FROM scored
)
SELECT * FROM ranked WHERE vote_rank < 6 ORDER BY vote_rank, link;
