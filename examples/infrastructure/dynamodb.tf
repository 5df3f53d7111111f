# The table, and the least that a candidate and a reader may do with it. Afterwards run `leaderctl store init --new` once:
# it records in the table since when the table remembers leases.

variable "table" {
  type    = string
  default = "locks"
}

resource "aws_dynamodb_table" "leaderrun" {
  name         = var.table
  billing_mode = "PAY_PER_REQUEST"
  hash_key     = "pk"
  range_key    = "sk"

  attribute {
    name = "pk"
    type = "S"
  }

  attribute {
    name = "sk"
    type = "S"
  }

  # Deletes what candidates left behind. No election depends on when this happens.
  ttl {
    attribute_name = "ttl"
    enabled        = true
  }

  # A table that is deleted under a leader forgets who leads.
  deletion_protection_enabled = true
}

resource "aws_iam_policy" "leaderrun_candidate" {
  name = "leaderrun-candidate-${var.table}"
  policy = jsonencode({
    Version = "2012-10-17"
    Statement = [{
      Effect = "Allow"
      Action = [
        "dynamodb:GetItem",
        "dynamodb:UpdateItem",
        "dynamodb:DeleteItem",
      ]
      Resource = aws_dynamodb_table.leaderrun.arn
    }]
  })
}

resource "aws_iam_policy" "leaderrun_reader" {
  name = "leaderrun-reader-${var.table}"
  policy = jsonencode({
    Version = "2012-10-17"
    Statement = [{
      Effect = "Allow"
      Action = [
        "dynamodb:GetItem",
        "dynamodb:Scan",
      ]
      Resource = aws_dynamodb_table.leaderrun.arn
    }]
  })
}
